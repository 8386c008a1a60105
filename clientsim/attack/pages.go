package attack

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// H2: clients that do not read hold the memory of their answers.
func pages() []Attack {
	return []Attack{
		{"pages", "H2", "14 DIDs of one address ask for 5.6 MB pages and do not read them",
			slowReaders(14, 1, 0, mlsapi.NSIDGetMessages)},
		{"pages-many", "H2", "64 DIDs of 32 addresses ask for 5.6 MB pages and do not read them",
			slowReaders(64, 32, 0, mlsapi.NSIDGetMessages)},
		{"pages-trickle", "H2", "14 DIDs of one address ask for 5.6 MB pages and read a byte per second",
			slowReaders(14, 1, 1, mlsapi.NSIDGetMessages)},
		{"pages-drip", "H2", "14 DIDs of one address ask for 5.6 MB pages and read 32 KiB per second",
			slowReaders(14, 1, 32<<10, mlsapi.NSIDGetMessages)},
		{"pages-convos", "H2", "64 DIDs of 8 addresses ask for their convos and do not read them",
			slowReaders(64, 8, 0, mlsapi.NSIDGetConvos)},
	}
}

// The page that slow clients request, and how many requests each DID makes at one time.
const (
	pageParts     = 6
	pagePart      = 930_000 // in bytes
	readersPerDID = 4
	receiveBuffer = 4 << 10
	answerTimeout = 20 * time.Second
)

func slowReaders(dids, addresses, perSecond int, method string) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids)
		c := t.client(0)
		id, group := Must2(t.convo(ctx, c, accounts))
		for i := range pageParts {
			who := accounts[i%len(accounts)]
			Must(c.Do(ctx, who,
				xrpc.SendCall(id, who.DID, 1, mlsclient.FakeMessage(group, 1, pagePart), xrpc.NewKey())))
		}
		query := "?limit=100"
		if method == mlsapi.NSIDGetMessages {
			query += "&messageType=all&sinceSeq=0&convoId=" + id
		}
		tokens := t.tokens(accounts, method)
		return &Prepared{Run: func(ctx context.Context) {
			var lanes sync.WaitGroup
			for i := range dids * readersPerDID {
				lanes.Go(func() {
					request := "GET /xrpc/" + method + query + " HTTP/1.1\r\nHost: " + t.Addr + "\r\nAuthorization: Bearer " +
						tokens[i%dids] + "\r\n\r\n"
					for ctx.Err() == nil {
						t.tried()
						t.answered(t.readSlowly(ctx, i%addresses, request, perSecond))
						xrpc.Sleep(ctx, time.Second/4)
					}
				})
			}
			lanes.Wait()
		}}
	}
}

// readSlowly sends a request, and reads perSecond bytes of the answer per second, until the server
// closes the connection or ctx ends. It returns the status of the answer.
func (t *Target) readSlowly(ctx context.Context, address int, request string, perSecond int) int {
	conn, end, err := t.open(ctx, address, request)
	if err != nil {
		return 0
	}
	defer end()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(receiveBuffer)
	}
	if err := conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0
	}
	status := readStatus(conn)
	if status != 200 {
		return status
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return status
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return status
		case <-tick.C:
		}
		if _, err := io.CopyN(io.Discard, conn, int64(perSecond)); err != nil {
			return status
		}
		if perSecond == 0 && cut(conn) {
			return status
		}
	}
}

// cut reports whether the server has reset the connection. If the server has closed the connection
// without a reset, there is still an answer to read.
func cut(conn net.Conn) bool {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true
	}
	var failed int
	err = errors.Join(err, raw.Control(func(fd uintptr) {
		failed, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
	}))
	return err != nil || failed != 0
}
