package api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
	"mlsd/internal/standby/standbytest"
)

// A read that fails on the standby and is repeated on the primary costs its caller what the more
// expensive of the two cost, once.
func TestRepeatedReadIsChargedOnce(t *testing.T) {
	t.Parallel()
	servers := pgtest.NewPair(t)
	nothing := func(url.Values, []byte) (any, error) { return nil, nil }
	s := &Server{cfg: Config{Reads: standbytest.Reads(t, servers.Pool(), servers)}}
	for _, c := range []struct{ onStandby, onPrimary, want int }{{7, 0, 8}, {7, 7, 8}, {2, 7, 8}} {
		ran := map[bool]int{} // by whether it was on the standby
		read := func(_ mlsapi.Handler[*call], cl *call, _ any) error {
			var standby bool
			if err := cl.db.QueryRow(cl.ctx, `SELECT pg_is_in_recovery()`).Scan(&standby); err != nil {
				return err
			}
			if ran[standby]++; !standby {
				cl.spend(c.onPrimary)
				return nil
			}
			cl.spend(c.onStandby)
			_, err := cl.db.Exec(cl.ctx, `SELECT 1 / 0`)
			return err
		}
		for deadline := time.Now().Add(30 * time.Second); ; { // the standby can be behind for a moment
			cl := &call{
				ctx: t.Context(), charged: 1, route: &route{Route: mlsapi.Route[*call]{Decode: nothing, Call: read}},
				http: &httpRequest{Context: echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil),
					httptest.NewRecorder())},
			}
			if err := s.read(cl); err != nil {
				t.Fatal(err)
			}
			if ran[true] > 0 {
				if cl.charged != c.want {
					t.Errorf("%d units on the standby and %d on the primary cost %d, want %d", c.onStandby, c.onPrimary, cl.charged,
						c.want)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("no read begins on the standby")
			}
		}
	}
}
