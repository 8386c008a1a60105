package attack

import (
	"bufio"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// H11 and H13: what a browser may be made to read, and what unauthenticated callers may make the
// server write.
func answersAndLogs() []Attack {
	return []Attack{
		{"rebinding", "H11", "a page in the operator's browser asks the admin listener under other names", rebind},
		{"request-id", "H13", "requests carry an X-Request-ID of 20,000 bytes", requestIDs},
		{"log-flood", "H13", "300 requests per second whose look-ups fail, each with an X-Request-ID of 4,000 bytes",
			logFlood},
	}
}

// foreignHeaders are headers of requests that a page of another site can make a browser send. host
// is the true address of the admin listener.
func foreignHeaders(host string) [][]string {
	_, port, _ := net.SplitHostPort(host)
	return [][]string{
		{"Host: evil.example"},
		{"Host: evil.example:" + port},
		{"Host: localhost.evil.example:" + port},
		{"Host: 127.0.0.1.evil.example:" + port},
		{"Host: 127.0.0.1.:" + port + ".evil.example"},
		{"Host: evil.example:" + port, "X-Forwarded-Host: " + host},
		{"Host: " + host, "Sec-Fetch-Site: cross-site"},
		{"Host: " + host, "Sec-Fetch-Site: same-site"},
		{"Host: " + host, "Origin: http://evil.example"},
		{"Host: " + host, "Origin: null"},
	}
}

// rebind requests everything that the admin listener serves, except /livez and /readyz, which
// answer only "ok" for load balancers. No request may be answered with content.
func rebind(_ context.Context, t *Target) *Prepared {
	host := strings.TrimPrefix(t.Admin, "http://")
	listener := *t
	listener.Addr = host
	read, whole := map[string]bool{}, 0
	ask := func(ctx context.Context, path string, headers []string) int {
		t.tried()
		status, _ := listener.raw(ctx,
			"GET "+path+" HTTP/1.1\r\n"+strings.Join(headers, "\r\n")+"\r\nConnection: close\r\n\r\n")
		t.answered(status)
		return status
	}
	return &Prepared{
		Run: func(ctx context.Context) {
			for ctx.Err() == nil {
				for _, path := range []string{"/metrics", "/check", "/debug/pprof/", "/debug/pprof/goroutine?debug=1"} {
					for _, headers := range foreignHeaders(host) {
						if status := ask(ctx, path, headers); status == http.StatusOK {
							read[strings.Join(headers, ", ")] = true
						}
					}
				}
				// The operator's own tools use the true name of the listener.
				if ctx.Err() == nil && ask(ctx, "/metrics", []string{"Host: " + host}) != http.StatusOK && ctx.Err() == nil {
					whole++
				}
				xrpc.Sleep(ctx, time.Second)
			}
		},
		Judge: func(context.Context, Effects) []Claim {
			return []Claim{
				{"ways in which a page of another site reads the admin listener", float64(len(read)), 0},
				{"refusals of the operator's own requests", float64(whole), 0},
			}
		},
	}
}

// raw sends a request and returns the status and the header of the answer.
func (t *Target) raw(ctx context.Context, request string) (int, http.Header) {
	conn, end, err := t.open(ctx, 0, request)
	if err != nil {
		return 0, nil
	}
	defer end()
	if err := conn.SetDeadline(time.Now().Add(xrpc.AttemptLimit)); err != nil {
		return 0, nil
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, nil
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // the status is enough
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header
}

// longestID is the longest X-Request-ID that a server may repeat, in bytes.
const longestID = 64

// requestIDs sends long and strange request ids to pages that answer anybody.
func requestIDs(_ context.Context, t *Target) *Prepared {
	longest, strange := 0, 0
	ids := []string{strings.Repeat("a", 20_000), strings.Repeat("b", longestID+1), "a\tb", "caf\xc3\xa9",
		"{{7*7}}\" level=ERROR msg=\"forged"}
	return &Prepared{
		Run: func(ctx context.Context) {
			for ctx.Err() == nil {
				for i, id := range ids {
					t.tried()
					status, header := t.raw(ctx,
						"GET /xrpc/"+mlsapi.NSIDGetConvos+" HTTP/1.1\r\nHost: "+t.Addr+"\r\nX-Request-ID: "+id+
							"\r\nConnection: close\r\n\r\n")
					t.answered(status)
					longest = max(longest, len(header.Get("X-Request-Id")))
					if i >= 2 && header.Get("X-Request-Id") == id {
						strange++
					}
				}
				xrpc.Sleep(ctx, 50*time.Millisecond)
			}
		},
		Judge: func(context.Context, Effects) []Claim {
			return []Claim{
				{"bytes of a repeated X-Request-ID", float64(longest), longestID},
				{"repeated ids with characters that are no part of an id", float64(strange), 0},
			}
		},
	}
}

// Bounds of what unauthenticated callers may make a server log, besides what honest users do.
const (
	linesPerSecond = 5
	bytesPerSecond = 4 << 10
)

// logFlood makes look-ups fail in several ways.
func logFlood(ctx context.Context, t *Target) *Prepared {
	prepared := webHosts(100, hangsUp, nil)(ctx, t)
	unknown, web := t.forgeries(100, 1, ofNobody, nil), t.web(0)
	id := strings.Repeat("x", 4000)
	return &Prepared{
		Run: func(ctx context.Context) {
			var all sync.WaitGroup
			all.Go(func() { prepared.Run(ctx) }) // neither can fail
			all.Go(func() { unknown.Run(ctx) })
			all.Go(func() {
				pace(ctx, 100, 64, func(ctx context.Context, _ int) {
					token := forge(unknownDID(), t.Audience, mlsapi.NSIDGetConvos)
					t.send(ctx, web, http.MethodGet, path(mlsapi.NSIDGetConvos), token, nil, "X-Request-Id", id)
				})
			})
			all.Wait()
		},
		Judge: func(_ context.Context, e Effects) []Claim {
			return []Claim{
				{"lines of log per second, besides the calm ones", math.Round(float64(e.LogLines)/e.Seconds - e.CalmLogLines),
					linesPerSecond},
				{"bytes of log per second, besides the calm ones", math.Round(float64(e.LogBytes)/e.Seconds - e.CalmLogBytes),
					bytesPerSecond},
			}
		},
	}
}
