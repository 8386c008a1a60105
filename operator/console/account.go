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
	DID  string // "": none was asked for
	Held operator.Account
	operator.AccountLists
	Memberships []operator.Membership
	NextConvos  string // the query of the next memberships; "": there are none
	Refused     []operator.Explanation
	Next        string // the query of earlier refusals; "": there are none
}

// account shows what the server has of an account, and what it was refused.
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

// Empty reports whether the server has nothing of the account.
func (p accountPage) Empty() bool {
	nothing := operator.Account{Account: accounts.Account{DID: p.Held.DID, Status: accounts.Active}}
	return p.Held == nothing && p.Blocks == 0 && len(p.Devices) == 0 && len(p.Quotas) == 0 && len(p.Pushes) == 0 &&
		len(p.Refused) == 0
}
