package api

import (
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/people/consent"
)

// GetBlocks: blue.catbird.mls.getBlocks. A page's cursor is the last DID of the page.
func (h *handlers) GetBlocks(c *call, p *mlsapi.GetBlocksParams) error {
	var after syntax.DID
	if p.Cursor != nil {
		var err error
		if after, err = syntax.ParseDID(*p.Cursor); err != nil {
			return errCursor
		}
	}
	blocks, more, err := consent.Blocks(c.ctx, c.db, c.caller, after, int(p.Limit))
	if err != nil {
		return err
	}
	out := &mlsapi.GetBlocksOutput{Blocks: make([]mlsapi.Block, len(blocks))}
	for i, b := range blocks {
		out.Blocks[i] = mlsapi.Block{DID: b.DID, CreatedAt: lexcodec.NewDatetime(b.At)}
	}
	if more {
		out.Cursor = lexcodec.Pointer(blocks[len(blocks)-1].DID.String())
	}
	return c.reply(out)
}
