package node

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// The server does not wait long for a host that accepts connections and does not answer.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := silent.Close(); err != nil {
			t.Error(err)
		}
	}()
	database := "postgres://mlsd:battery@" + silent.Addr().String() + "/mlsd"
	done := make(chan error, 1)
	go func() { done <- reach(context.Background(), database, 50*time.Millisecond) }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), silent.Addr().String()) {
			t.Errorf("reach: %v", err)
			return
		}
		if strings.Contains(err.Error(), "battery") {
			t.Errorf("the password is in: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits still")
	}
	if reachTimeout > 30*time.Second {
		t.Errorf("reachTimeout is %v", reachTimeout)
	}
}
