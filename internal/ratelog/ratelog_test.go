package ratelog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// text is what was logged. A timer writes to it as well.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

func (x *text) Reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.buf.Reset()
}

// H13: an unauthenticated caller who causes 8,000 log lines gets a few of them into the log, and
// how many were left out. Other messages are written meanwhile.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out text
		plain := slog.New(slog.NewTextHandler(&out,
			&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}}))
		log := New(plain)
		for i := range 8000 {
			log.With("i", i).Warn("a token cannot be checked")
		}
		log.Info("another matter")
		if n := strings.Count(out.String(), "a token cannot be checked"); n != Lines {
			t.Errorf("%d lines were written, want %d", n, Lines)
		}
		if !strings.Contains(out.String(), "another matter") {
			t.Error("the other message was left out")
		}
		out.Reset()
		time.Sleep(Every)
		synctest.Wait()
		want := fmt.Sprintf("level=WARN msg=%q left_out=%d\n", "a token cannot be checked", 8000-Lines)
		if out.String() != want {
			t.Errorf("after %s: %q, want %q", Every, out.String(), want)
		}
		out.Reset()
		log.Warn("a token cannot be checked")
		if out.String() == "" {
			t.Error("the next one was left out too")
		}
		time.Sleep(Every)
		synctest.Wait()
	})
}

// A caller that could choose the messages would still be bounded.
func TestManyMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out text
		log := New(slog.New(slog.NewTextHandler(&out, nil)))
		for i := range 10 * maxMessages {
			log.Info(fmt.Sprint("message ", i))
		}
		if n, most := strings.Count(out.String(), "\n"), maxMessages+Lines; n > most {
			t.Errorf("%d lines, want at most %d", n, most)
		}
		time.Sleep(Every)
		synctest.Wait()
	})
}
