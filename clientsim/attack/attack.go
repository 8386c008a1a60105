// Package attack holds programs that attack a server on this machine, and measures what honest
// users notice. It has the attacks whose effect only a running server under load shows; what else a
// server must refuse is a test of the server. Each attack has its own addresses, is bounded in time
// and size, and belongs to a finding of an examination (H1, H2 …). During an attack, the server
// must serve honest users as well as before.
//
//	prepare: a new database, a server with its default limits, honest users, the attacker's accounts
//	calm, attack, after: honest requests at a steady rate; the attack runs in the second phase
//	verdict: honest success, honest latency, memory, and what the attack itself claims
//
// Everything is on loopback addresses. Attackers use 127.1.0.0/16, honest users 127.0.0.1.
package attack

import (
	"context"
	"fmt"
	"slices"
	"strings"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// Attack is one program that attacks a server.
type Attack struct {
	Name    string
	Finding string // for example "H3"
	What    string // what it does, in one line
	// Prepare creates what the attack needs, before the calm phase. The returned attack runs later.
	Prepare prepare
}

// prepare is a function that prepares an attack.
type prepare func(ctx context.Context, t *Target) *Prepared

// Prepared is an attack that is ready to run.
type Prepared struct {
	// Run attacks until ctx ends, and then frees what it holds. Refusals are not errors.
	Run func(ctx context.Context)
	// Judge states what must be true, besides good service for honest users. It may be nil.
	Judge func() []Claim
}

// Claim is a statement about a value that must be at most Limit.
type Claim struct {
	What         string
	Value, Limit float64
}

// Attacks returns all attacks in the order of their findings.
func Attacks() []Attack {
	return slices.Concat(costly(), slow(), lookUps(), timings(), hostileServices())
}

// Selection returns the attacks that name selects: one attack, all attacks of a finding, "all", or
// "together".
func Selection(name string) ([]Attack, error) {
	all := Attacks()
	switch name {
	case "all":
		return all, nil
	case togetherName:
		return []Attack{together(all)}, nil
	}
	found := slices.DeleteFunc(all, func(a Attack) bool { return a.Name != name && !strings.EqualFold(a.Finding, name) })
	if len(found) == 0 {
		return nil, fmt.Errorf("no attack %q; --list names them", name)
	}
	return found, nil
}

const togetherName = "together"

// together combines the first attacks of all findings into one attack. They run at the same time.
func together(all []Attack) Attack {
	all = slices.CompactFunc(all, func(a, b Attack) bool { return a.Finding == b.Finding })
	return Attack{
		Name: togetherName, Finding: "all", What: "the first attack of each finding, all at once",
		Prepare: func(ctx context.Context, t *Target) *Prepared {
			var ready []*Prepared
			for i, a := range all {
				// Each attacker has its own addresses, like attackers who do not know each other.
				own := *t
				own.slot = i
				Check(errs.Wrap(Attempt(func() { ready = append(ready, a.Prepare(ctx, &own)) }), "%s", a.Name))
				t.Bystanders = own.Bystanders
			}
			return &Prepared{Run: func(ctx context.Context) {
				Each(len(ready), len(ready), func(i int) {
					Check(errs.Wrap(Attempt(func() { ready[i].Run(ctx) }), "%s", all[i].Name))
				})
			}}
		},
	}
}
