package history

import (
	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// Followed returns how far a server that sees only the handshakes could check the last commit, and
// whether it has the GroupInfo of the present epoch. known is false if the view does not begin at
// seq 1, or if the model does not know one of its commits.
func (c *ConvoModel) Followed(v *View) (level string, info, known bool) {
	tree := c.withInfo
	level, info = mlsapi.ConvoViewCommitLevelHeader, c.withInfo
	if tree {
		level = mlsapi.ConvoViewCommitLevelVerified
	}
	if m := c.Members[v.DID]; m == nil || m.from > 1 {
		return "", false, false
	}
	for i := range v.Log {
		entry := &v.Log[i]
		if !xrpc.IsCommit(entry) {
			continue
		}
		made, ok := c.Commits[DigestOf(entry.Ciphertext)]
		switch {
		case !ok:
			return "", false, false
		case !made.Public:
			level, tree = mlsapi.ConvoViewCommitLevelHeader, made.WithInfo
		case tree:
			level = mlsapi.ConvoViewCommitLevelVerified
		default:
			level, tree = mlsapi.ConvoViewCommitLevelStructure, made.WithInfo
		}
		info = made.WithInfo
	}
	return level, info, true
}
