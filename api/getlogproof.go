package api

import (
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/transparency/verifier"
)

// GetLogProof: blue.catbird.mls.getLogProof.
func (h *handlers) GetLogProof(c *call, p *mlsapi.GetLogProofParams) error {
	convo, _, err := c.member(h.DB, p.ConvoID)
	if err != nil {
		return err
	}
	if (p.Seq == nil) == (p.From == nil) {
		return badRequest("send seq or from, and not both")
	}
	out := &mlsapi.GetLogProofOutput{}
	var proof []verifier.Hash
	var hashed int64
	defer func() { c.spend(int(hashed / unitBytes)) }()
	if p.Seq != nil {
		var leaf verifier.Hash
		leaf, proof, err = h.Heads.Inclusion(c.ctx, convo, *p.Seq, p.Size, &hashed)
		out.Leaf = leaf[:]
	} else {
		proof, err = h.Heads.Consistency(c.ctx, convo, *p.From, p.Size, &hashed)
	}
	if err != nil {
		return err
	}
	out.Hashes = make([]lexcodec.Bytes, len(proof))
	for i := range proof {
		out.Hashes[i] = proof[i][:]
	}
	return c.reply(out)
}
