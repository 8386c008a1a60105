package clientsim

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeServer answers calls with a function and remembers them.
type fakeServer struct {
	answer func(n int, w http.ResponseWriter) // n counts from 0

	mu     sync.Mutex // guards what follows
	bodies []string
	tokens []string
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	n := len(f.bodies)
	f.bodies = append(f.bodies, string(body))
	f.tokens = append(f.tokens, r.Header.Get("Authorization"))
	f.mu.Unlock()
	f.answer(n, w)
}

// seen returns the bodies that arrived, and whether all tokens differ.
func (f *fakeServer) seen() (bodies []string, fresh bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tokens := slices.Compact(slices.Sorted(slices.Values(f.tokens)))
	return slices.Clone(f.bodies), len(tokens) == len(f.bodies)
}

func say(status int, body string, headers ...string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// testNet puts a client, faults and a ledger in front of a fake server.
func testNet(t *testing.T, answer func(int, http.ResponseWriter)) (*fakeServer, *Client, *Faulty, *Ledger) {
	t.Helper()
	fake := &fakeServer{answer: answer}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	ledger := NewLedger(server.Client().Transport)
	faults := NewFaulty(ledger)
	return fake, NewClient(server.URL, DefaultServiceDID, faults, &Stats{}), faults, ledger
}

func testCall() Call {
	return Call{Method: nsid("sendMessage"), Body: []byte(`{"a":1}`), Key: "k", Convo: "c"}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	body := string(testCall().Body)
	tests := map[string]struct {
		fault   Fault
		heard   bool
		arrived []string
	}{
		"none":         {Fault{}, true, []string{body}},
		"lose request": {Fault{Kind: LoseRequest}, false, nil},
		"lose answer":  {Fault{Kind: LoseAnswer}, false, []string{body}},
		"repeat":       {Fault{Kind: Repeat}, true, []string{body, body}},
		"delay":        {Fault{Kind: Delay, Delay: time.Millisecond}, true, []string{body}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, client, faults, _ := testNet(t, say(200, "{}"))
			script := &Script{}
			if tt.fault.Kind != "" {
				script.On(testCall().Method, tt.fault)
			}
			faults.Use(script)
			answer, err := client.Once(t.Context(), testAccount(t, nil, 0), testCall())
			if heard := err == nil && string(answer.Body) == "{}"; heard != tt.heard {
				t.Errorf("heard = %t, %v", heard, err)
			}
			if script.Left() != 0 {
				t.Error("the fault did not happen")
			}
			arrived, fresh := fake.seen()
			if diff := cmp.Diff(tt.arrived, arrived); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
			if !fresh {
				t.Error("a token was sent twice")
			}
		})
	}
}

// Then runs between the server's answer and the client's silence.
func TestLostAnswerThen(t *testing.T) {
	t.Parallel()
	fake, client, faults, ledger := testNet(t, say(200, "{}"))
	ran := 0
	faults.Use((&Script{}).On(testCall().Method, Fault{Kind: LoseAnswer, Then: func(context.Context) error {
		arrived, _ := fake.seen()
		ran = len(arrived)
		return nil
	}}))
	who := testAccount(t, nil, 0)
	if _, err := client.Once(t.Context(), who, testCall()); !errors.Is(err, errLost) {
		t.Errorf("err = %v, want errLost", err)
	}
	if ran != 1 {
		t.Errorf("Then ran with %d requests arrived, want 1", ran)
	}
	if original, ok := ledger.Original(who, testCall()); !ok || string(original) != "{}" {
		t.Errorf("the ledger missed the lost answer: %q, %t", original, ok)
	}
}

func TestScriptIsOneShotAndByMethod(t *testing.T) {
	t.Parallel()
	script := (&Script{}).On(nsid("sendMessage"), Fault{Kind: LoseAnswer}).On(nsid("sendMessage"), Fault{Kind: Delay})
	var got []FaultKind
	for _, method := range []string{"getConvo", "sendMessage", "sendMessage", "sendMessage"} {
		fault, _ := script.Next(Call{Method: nsid(method)})
		got = append(got, fault.Kind)
	}
	if diff := cmp.Diff([]FaultKind{"", LoseAnswer, Delay, ""}, got); diff != "" {
		t.Error(diff)
	}
}

func TestWeatherFollowsTheSeed(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) []FaultKind {
		w := NewWeather(seed, 0.5)
		var kinds []FaultKind
		for range 200 {
			fault, _ := w.Next(testCall())
			kinds = append(kinds, fault.Kind)
		}
		return kinds
	}
	if diff := cmp.Diff(draw(1), draw(1)); diff != "" {
		t.Error("the same seed made other weather")
	}
	if slices.Equal(draw(1), draw(2)) {
		t.Error("two seeds made the same weather")
	}
	for _, kind := range []FaultKind{"", LoseRequest, LoseAnswer, Repeat, Delay} {
		if !slices.Contains(draw(1), kind) {
			t.Errorf("no %q in 200 requests", kind)
		}
	}
}
