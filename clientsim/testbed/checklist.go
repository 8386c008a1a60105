package testbed

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// listPage is small, so that even a member of a few convos reads several pages.
const listPage = 2

// checkLists reads each account's convos in small pages and compares them with the model. Before
// that it reports an older place in each convo as read, which must not move the account's cursor
// back.
func (w *World) checkLists(ctx context.Context, views map[string]map[syntax.DID]*history.View) {
	convos := w.Model.Snapshot()
	for _, p := range w.accounts() {
		did := p.Account.DID
		want := map[string]history.ListEntry{}
		for _, c := range convos {
			m, was := c.Members[did]
			if !was || !m.Live {
				continue
			}
			if err := p.MarkRead(ctx, c.ID, 0); err != nil {
				w.Broken("%v", err)
			}
			want[c.ID] = history.ListEntry{GroupID: hex.EncodeToString(c.GroupID), Members: c.Live(), View: views[c.ID][did],
				Cursor: m.Cursor}
		}
		got, err := w.List(ctx, p)
		if err != nil {
			w.Broken("%s cannot list its convos: %v", p.Name, err)
			continue
		}
		w.Report(history.CheckList(p.Name, did, got, want)...)
	}
}

// accounts returns one phone of each account.
func (w *World) accounts() []*client.Phone {
	seen := map[syntax.DID]bool{}
	return slices.DeleteFunc(slices.Clone(w.phones), func(p *client.Phone) bool {
		again := seen[p.Account.DID]
		seen[p.Account.DID] = true
		return again
	})
}

// List reads getConvos to its end.
func (w *World) List(ctx context.Context, p *client.Phone) (_ []mlsapi.ConvoView, err error) {
	defer Catch(&err)
	var all []mlsapi.ConvoView
	cursor := ""
	for {
		page := Must(xrpc.Ask[mlsapi.GetConvosOutput](ctx, w.Net, p.Account, xrpc.ConvosCall(cursor, listPage)))
		if all = append(all, page.Conversations...); page.Cursor == nil {
			return all, nil
		}
		if len(page.Conversations) == 0 || *page.Cursor == cursor {
			return nil, fmt.Errorf("getConvos does not get on after the cursor %q", cursor)
		}
		cursor = *page.Cursor
	}
}
