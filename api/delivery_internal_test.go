package api

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// A writer of delivery does not wait for a connection: not for its client, and not for a control
// frame. What it has left is written whole, and no control frame comes in between.
func TestDeliveryDoesNotWait(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := newWholeWrites(server)
	if err != nil {
		t.Fatal(err)
	}
	k := &stream{streams: &streams{pace: defaultPace}, conn: conn, opened: time.Now()}
	k.watchdog = time.AfterFunc(time.Hour, k.watch)
	w := &writer{}
	w.attempt = w.try

	var want bytes.Buffer
	event := func(b byte, n int) []byte {
		want.Write(bytes.Repeat([]byte{b}, n))
		return bytes.Repeat([]byte{b}, n)
	}
	w.frames = [][]byte{event('a', 10), event('b', 20)}
	if w.write(k) != nil {
		t.Error("it leaves what an idle connection takes at once")
	}
	w.frames = [][]byte{event('c', 64<<20)} // more than the connection's buffers
	rest := w.write(k)
	if rest == nil {
		t.Fatal("it has written more than the connection can take")
	}
	control := make(chan error, 1)
	go func() {
		_, err := conn.Write([]byte("ping"))
		control <- err
	}()
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := rest(); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, want.Len())
	if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("the client got other bytes: %v", err)
	}
	writing.Wait()
	if err := <-control; err != nil {
		t.Error(err)
	}
	ping := make([]byte, 4)
	if _, err := io.ReadFull(client, ping); err != nil || string(ping) != "ping" {
		t.Errorf("the control frame is %q: %v", ping, err)
	}

	conn.mu.Lock() // a control frame is being written
	w.frames = [][]byte{[]byte("after")}
	if rest = w.write(k); rest == nil {
		t.Fatal("it writes into a control frame")
	}
	conn.mu.Unlock()
	if err := rest(); err != nil {
		t.Error(err)
	}
	after := make([]byte, 5)
	if _, err := io.ReadFull(client, after); err != nil || string(after) != "after" {
		t.Errorf("got %q: %v", after, err)
	}
}
