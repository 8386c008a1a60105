package console

import (
	"context"
	"fmt"
	"net/url"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/operator"
	"mlsd/people/accounts"
)

// accountPage is what the page Account shows.
type accountPage struct {
	DID  string // "" if no account was asked for
	Held operator.Account
	operator.AccountLists
	Memberships []operator.Membership
	NextConvos  string // query for the next memberships; "" if there are none
	Refused     []operator.Explanation
	Next        string // query for earlier refusals; "" if there are none
}

// account shows what the server stores about an account, and which of its requests were refused.
func (c *Console) account(ctx context.Context, r *Request) (any, error) {
	p := accountPage{}
	if r.Query.Get("did") == "" {
		return p, nil
	}
	did, err := r.ReadDID("did")
	if err != nil {
		return nil, err
	}
	p.DID = did.String()
	after, err := uuid.Parse(r.Query.Get("after"))
	if err != nil {
		after = uuid.Nil
	}
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		if p.Held, err = c.Operator.Account(ctx, tx, did); err != nil {
			return err
		}
		if p.AccountLists, err = operator.ReadAccount(ctx, tx, p.DID, c.Quotas); err != nil {
			return err
		}
		if p.Memberships, err = operator.Memberships(ctx, tx, p.DID, after, pageRows); err != nil {
			return err
		}
		p.Refused, p.Next, err = explain(ctx, tx, r, operator.RequestsOf{Caller: p.DID, Failed: true}, explainedOfAccount)
		return err
	})
	p.NextConvos = next(p.Memberships, func(last operator.Membership) string {
		return fmt.Sprintf("?did=%s&after=%s", url.QueryEscape(r.Ref(p.DID)), last.Convo)
	})
	return p, err
}

// Empty reports whether the server stores nothing about the account.
func (p accountPage) Empty() bool {
	nothing := operator.Account{Account: accounts.Account{DID: p.Held.DID, Status: accounts.Active}}
	return p.Held == nothing && p.Blocks == 0 && len(p.Devices) == 0 && len(p.Quotas) == 0 && len(p.Pushes) == 0 &&
		len(p.Refused) == 0
}
