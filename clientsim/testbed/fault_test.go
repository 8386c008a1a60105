package testbed

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

// testNet puts a client, faults and a ledger in front of a fake server.
func testNet(t *testing.T, answer func(int, http.ResponseWriter)) (*xrpctest.Server, *xrpc.Client, *FaultyTransport,
	*history.Ledger) {
	t.Helper()
	fake, server := xrpctest.Serve(t, answer)
	ledger := history.NewLedger(server.Client().Transport)
	faults := NewFaultyTransport(ledger)
	return fake, xrpc.NewClient(server.URL, xrpc.DefaultServiceDID, faults, &xrpc.Stats{}), faults, ledger
}

func TestFaults(t *testing.T) {
	t.Parallel()
	body := string(xrpctest.Call().Body)
	tests := map[string]struct {
		fault    Fault
		answered bool
		arrived  []string
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
			fake, client, faults, _ := testNet(t, xrpctest.Say(200, "{}"))
			plan := &NextFault{Method: xrpctest.Call().Method, Fault: tt.fault}
			if tt.fault.Kind != "" {
				faults.Use(plan)
			}
			answer, err := client.Once(t.Context(), xrpctest.Account(t, 0), xrpctest.Call())
			if answered := err == nil && string(answer.Body) == "{}"; answered != tt.answered {
				t.Errorf("answered = %t, %v", answered, err)
			}
			if tt.fault.Kind != "" && !plan.happened.Load() {
				t.Error("the fault did not happen")
			}
			arrived, fresh := fake.Seen()
			if diff := cmp.Diff(tt.arrived, arrived); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
			if !fresh {
				t.Error("a token was sent twice")
			}
		})
	}
}

// A request whose token another process has made arrives twice with that token.
func TestRepeatOfAnother(t *testing.T) {
	t.Parallel()
	fake, server := xrpctest.Serve(t, xrpctest.Say(200, "{}"))
	faults := NewFaultyTransport(server.Client().Transport)
	faults.Use(&NextFault{Method: xrpctest.Call().Method, Fault: Fault{Kind: Repeat}})
	call := xrpctest.Call()
	req, err := http.NewRequestWithContext(xrpc.WithCallInfo(t.Context(), xrpc.CallInfo{Call: call}), http.MethodPost,
		server.URL, bytes.NewReader(call.Body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer theirs")
	resp, err := faults.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := xrpc.Drain(resp); err != nil {
		t.Error(err)
	}
	arrived, fresh := fake.Seen()
	if diff := cmp.Diff([]string{string(call.Body), string(call.Body)}, arrived); diff != "" || fresh {
		t.Errorf("arrived with new tokens: %t (-want +got):\n%s", fresh, diff)
	}
}

// The ledger sees an answer that the client does not get.
func TestLedgerSeesLostAnswer(t *testing.T) {
	t.Parallel()
	_, client, faults, ledger := testNet(t, xrpctest.Say(200, "{}"))
	faults.Use(&NextFault{Method: xrpctest.Call().Method, Fault: Fault{Kind: LoseAnswer}})
	who := xrpctest.Account(t, 0)
	if _, err := client.Once(t.Context(), who, xrpctest.Call()); !errors.Is(err, errLost) {
		t.Errorf("err = %v, want errLost", err)
	}
	if original, ok := ledger.Original(who, xrpctest.Call()); !ok || string(original) != "{}" {
		t.Errorf("the ledger missed the lost answer: %q, %t", original, ok)
	}
}

func TestNextFaultHappensOnceByMethod(t *testing.T) {
	t.Parallel()
	plan := &NextFault{Method: xrpc.NSID("sendMessage"), Fault: Fault{Kind: LoseAnswer}}
	var got []FaultKind
	for _, method := range []string{"getConvo", "sendMessage", "sendMessage"} {
		fault, _ := plan.Next(xrpc.Call{Method: xrpc.NSID(method)})
		got = append(got, fault.Kind)
	}
	if diff := cmp.Diff([]FaultKind{"", LoseAnswer, ""}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRandomFaultsFollowTheSeed(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) []FaultKind {
		w := NewRandomFaults(seed, 0.5)
		var kinds []FaultKind
		for range 200 {
			fault, _ := w.Next(xrpctest.Call())
			kinds = append(kinds, fault.Kind)
		}
		return kinds
	}
	if diff := cmp.Diff(draw(1), draw(1)); diff != "" {
		t.Error("the same seed made other faults")
	}
	if slices.Equal(draw(1), draw(2)) {
		t.Error("two seeds made the same faults")
	}
	for _, kind := range []FaultKind{"", LoseRequest, LoseAnswer, Repeat, Delay} {
		if !slices.Contains(draw(1), kind) {
			t.Errorf("no %q in 200 requests", kind)
		}
	}
}
