package attack

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// H4: tokens of accounts that nobody knows make the server look them up.
func forgedTokens() []Attack {
	const forgeries = 300 // per second
	return []Attack{
		{"forged", "H4", "one address forges 300 tokens per second of accounts that do not exist",
			forgers(forgeries, 1, ofNobody, nil)},
		{"forged-known", "H4", "one address forges 300 tokens per second of honest users",
			forgers(forgeries, 1, ofVictims, nil)},
		{"forged-many", "H4", "20 addresses forge 300 tokens per second of accounts that do not exist",
			forgers(forgeries, 20, ofNobody, nil)},
		{"forged-web", "H4", "one address forges 300 tokens per second of did:web accounts at 64 hosts that hang up",
			webHosts(forgeries, hangsUp, nil)},
	}
}

// H9: look-ups that fail are not charged, and slow hosts hold the places of others.
func failedLookups() []Attack {
	return []Attack{
		{"failing", "H9", "one address names did:web accounts at 64 hosts that hang up, 800 times per second",
			webHosts(800, hangsUp, chargedAfterBurst)},
		{"failing-unknown", "H9", "one address names accounts that do not exist, 800 times per second",
			forgers(800, 1, ofNobody, chargedAfterBurst)},
		{"tarpits", "H9", "one address names did:web accounts at 64 hosts that never answer",
			webHosts(64, neverAnswers, chargedAfterBurst)},
		{"tarpits-slow", "H9", "one address names did:web accounts at 64 hosts that send a byte per second",
			webHosts(64, answersSlowly, chargedAfterBurst)},
	}
}

// issuerOf picks the DID that the i-th forged token names.
type issuerOf func(t *Target, i int) syntax.DID

func ofNobody(*Target, int) syntax.DID      { return unknownDID() }
func ofVictims(t *Target, i int) syntax.DID { return t.Victims[i%len(t.Victims)] }
func lanesFor(rate float64) int             { return max(64, int(rate)) }

// judgeOf makes the judgement of an attack on a target.
type judgeOf func(*Target) func(context.Context, Effects) []Claim

// chargedAfterBurst checks that failed look-ups are charged to the address, by the default limits
// of requests without a verified caller: 2,000 at once, and 200 per second, with a tolerance of a
// fifth.
func chargedAfterBurst(t *Target) func(context.Context, Effects) []Claim {
	const burst, perSecond, tolerance = 2000, 200, 1.2
	return func(_ context.Context, e Effects) []Claim {
		t.answers.mu.Lock()
		defer t.answers.mu.Unlock()
		served := int64(0)
		for status, n := range t.answers.byStatus {
			if status != noAnswer && status != fmt.Sprint(http.StatusTooManyRequests) {
				served += n
			}
		}
		return []Claim{{"requests of the address that were not refused by 429", float64(served),
			float64(int((burst + perSecond*e.Seconds) * tolerance))}}
	}
}

// forgers forges tokens of issuers.
func forgers(rate float64, addresses int, issuer issuerOf, judge judgeOf) func(context.Context, *Target) (*Prepared,
	error) {
	return func(_ context.Context, t *Target) (*Prepared, error) {
		return t.forgeries(rate, addresses, issuer, judge), nil
	}
}

// forgeries makes requests with forged tokens.
func (t *Target) forgeries(rate float64, addresses int, issuer issuerOf, judge judgeOf) *Prepared {
	webs := make([]*http.Client, addresses)
	for i := range webs {
		webs[i] = t.web(i)
	}
	p := &Prepared{Run: func(ctx context.Context) error {
		pace(ctx, rate, lanesFor(rate), func(ctx context.Context, i int) {
			token, err := forge(issuer(t, i), t.Audience, mlsapi.NSIDGetConvos)
			if err != nil {
				return // then there is one attempt less
			}
			t.send(ctx, webs[i%addresses], http.MethodGet, path(mlsapi.NSIDGetConvos), token, nil)
		})
		return nil
	}}
	if judge != nil {
		p.Judge = judge(t)
	}
	return p
}

// webHosts forges tokens of did:web accounts at hosts of the attacker's. Honest newcomers with a
// did:web come at the same time.
func webHosts(rate float64, serve func(net.Conn), judge judgeOf) func(context.Context, *Target) (*Prepared, error) {
	const hosts = 64
	return func(_ context.Context, t *Target) (*Prepared, error) {
		var dids []syntax.DID
		for range hosts {
			port, err := t.listen(serve)
			if err != nil {
				return nil, err
			}
			dids = append(dids, syntax.DID(fmt.Sprintf("did:web:localhost%%3A%d", port)))
		}
		t.Bystanders = append(t.Bystanders, Operation{"did:web newcomer", 1, t.honest.webNewcomer})
		return t.forgeries(rate, 1, func(_ *Target, i int) syntax.DID { return dids[i%hosts] }, judge), nil
	}
}

// listen accepts connections on a port of this machine until the measurement ends.
func (t *Target) listen(serve func(net.Conn)) (port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex // guards open
	open := map[net.Conn]bool{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			serving.Go(func() {
				serve(conn)
				mu.Lock()
				defer mu.Unlock()
				delete(open, conn)
				_ = conn.Close()
			})
		}
	})
	t.atEnd(func() error {
		err := l.Close()
		mu.Lock()
		for conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		serving.Wait()
		return err
	})
	return l.Addr().(*net.TCPAddr).Port, nil
}

// What the attacker's hosts do with a connection.
func hangsUp(net.Conn) {}

func neverAnswers(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func answersSlowly(conn net.Conn) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go feed(ctx, conn, "H")
	_, _ = io.Copy(io.Discard, conn)
}
