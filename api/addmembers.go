package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/idem"
)

// AddMembers: blue.catbird.mls.addMembers.
func (h *handlers) AddMembers(c *call, in *mlsapi.AddMembersInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	convo, err := convoID(in.ConvoID)
	if err != nil {
		return err
	}
	input := content(in.Fields())
	if key == "" {
		key = input.DerivedKey()
	}
	add := convos.AddMembers{
		ConvoID: convo, Caller: c.caller, DIDs: in.DIDList,
		Proposed: proposed("addMembers", key, input, in.Commit, in.WelcomeMessage, in.GroupInfo),
	}
	return h.commit(c, convo, key, input, func(ctx context.Context, tx pgx.Tx) (mlsapi.Appender, error) {
		advanced, err := convos.Add(ctx, tx, add)
		if err != nil {
			return nil, err
		}
		return &mlsapi.AddMembersOutput{Success: true, NewEpoch: advanced.Epoch, Seq: &advanced.Seq}, nil
	})
}

// proposed is the commit of a request to method, with what it brings. On the log entry the key stands behind the method's
// name: a key is a method's own.
func proposed(method, key string, input idem.Content, commit, welcome, groupInfo []byte) convos.Proposed {
	return convos.Proposed{
		Commit: commit, Welcome: welcome, GroupInfo: groupInfo, Key: method + ":" + key, Hash: input.Hash(),
	}
}
