package attack

import (
	"context"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// H10: an account that costs nothing fills the disk, and invites many people.
func fills() []Attack {
	return []Attack{
		{"disk", "H10", "one DID sends 1 MiB messages as fast as it may", fillDisk(1)},
		{"disk-many", "H10", "10 DIDs of one address send 1 MiB messages as fast as they may", fillDisk(10)},
		{"invitations", "H10", "one DID makes convos of 100 people as fast as it may", invite(1)},
		{"invitations-many", "H10", "20 DIDs of one address make convos with the same 100 people as fast as they may",
			invite(20)},
	}
}

// Bounds of what one address may store or request in a day.
const (
	storedPerDay  = 10 << 30 // bytes
	invitedPerDay = 100_000  // people times convos
	maxStored     = 2 << 30  // bytes that one attack stores at most
	bulk          = 1 << 20  // bytes of a message
	invitedAtOnce = 100
)

// fillDisk sends large messages to a convo of the attacker. What the server accepts in the last
// quarter of the attack is projected to a day, so that a quota that was reached counts.
func fillDisk(dids int) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids)
		c := t.client(0)
		id, group := Must2(t.convo(ctx, c, accounts))
		accepted := &acceptances{}
		send := func(ctx context.Context, who *xrpc.Account) error {
			_, err := t.once(ctx, c, who, xrpc.SendCall(id, who.DID, 1, mlsclient.FakeMessage(group, 1, bulk), xrpc.NewKey()))
			if err == nil {
				accepted.add(bulk)
			}
			return err
		}
		// Only a reached quota has an effect. Rate limits only delay that.
		for i, left := 0, t.Fill; left > 0 && i < dids; {
			switch err := send(ctx, accounts[i]); {
			case err == nil:
				left -= bulk
			case xrpc.ErrorName(err) == "RateLimitExceeded" && ctx.Err() == nil:
				xrpc.Sleep(ctx, time.Second)
			default:
				i++
			}
		}
		return &Prepared{
			Run: func(ctx context.Context) {
				accepted.begin()
				var lanes sync.WaitGroup
				for i := range max(4, dids) {
					lanes.Go(func() {
						for ctx.Err() == nil && accepted.sum() < maxStored {
							if send(ctx, accounts[i%dids]) != nil {
								xrpc.Sleep(ctx, refusedPause)
							}
						}
					})
				}
				lanes.Wait()
			},
			Judge: func(_ context.Context, e Effects) []Claim {
				return []Claim{{"bytes that the address stores in a day", accepted.perDay(e.Seconds), storedPerDay}}
			},
		}
	}
}

// invite makes convos with people who have nothing to do with the attacker.
func invite(dids int) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids)
		people := append([]syntax.DID(nil), t.Victims...)
		for len(people) < invitedAtOnce {
			people = append(people, unknownDID())
		}
		people = people[:invitedAtOnce]
		c, invited := t.client(0), &acceptances{}
		return &Prepared{
			Run: func(ctx context.Context) {
				invited.begin()
				pace(ctx, 60, 8, func(ctx context.Context, i int) {
					if _, err := t.once(ctx, c, accounts[i%dids], createCall(mlsclient.RandomBytes(16), people)); err == nil {
						invited.add(invitedAtOnce)
					}
				})
			},
			Judge: func(_ context.Context, e Effects) []Claim {
				return []Claim{{"people whom the address invites in a day", invited.perDay(e.Seconds), invitedPerDay}}
			},
		}
	}
}

// acceptances records when the server has accepted how much.
type acceptances struct {
	mu    sync.Mutex // guards the fields below
	began time.Time
	at    []time.Duration
	n     []int64
	total int64
}

func (h *acceptances) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began, h.at, h.n = time.Now(), nil, nil
}

func (h *acceptances) add(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.n, h.total = append(h.at, time.Since(h.began)), append(h.n, n), h.total+n
}

func (h *acceptances) sum() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total
}

// perDay projects the last quarter of that many seconds to a day.
func (h *acceptances) perDay(seconds float64) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	const day = 24 * 60 * 60
	var n int64
	for i, at := range h.at {
		if at.Seconds() >= seconds*3/4 && at.Seconds() < seconds {
			n += h.n[i]
		}
	}
	return float64(int64(float64(n) / (seconds / 4) * day))
}
