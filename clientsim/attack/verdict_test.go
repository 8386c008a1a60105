package attack

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	served := Figures{Count: 100, Success: 1, P99: 40}
	slower := func(p99 float64) Figures { f := served; f.P99 = p99; return f }
	failing := func(success float64) Figures { f := served; f.Success = success; return f }
	for name, test := range map[string]struct {
		result Result
		want   []string
	}{
		"withstood": {Result{Attempts: 1, Honest: honestly(served, slower(150), served)}, nil},
		"slow": {Result{Attempts: 1, Honest: honestly(served, slower(151), served)},
			[]string{"send: p99 151 ms during the attack, at most 150 ms"}},
		"above the floor": {Result{Attempts: 1, Honest: honestly(slower(100), slower(300), served)}, nil},
		"one failure": {Result{Attempts: 1, Honest: honestly(served, failing(0.999999), served)},
			[]string{"send: success 99.99% during the attack ()"}},
		"before the attack": {Result{Attempts: 1, Honest: honestly(failing(0.5), served, served)},
			[]string{"send: success 50.00% before the attack: this says nothing about it ()"}},
		"after the attack": {Result{Attempts: 1, Honest: honestly(served, served, failing(0))},
			[]string{"send: success 0% after the attack ()"}},
		"not measured afterward": {Result{Attempts: 1, Honest: honestly(served, served, Figures{})}, nil},
		"not measured": {Result{Attempts: 1, Honest: honestly(served, Figures{}, served)},
			[]string{"send: not measured"}},
		"no attack": {Result{Honest: honestly(served, served, served)}, []string{"the attack did nothing"}},
		"memory": {Result{Attempts: 1, Memory: 3 << 30, Honest: honestly(served, served, served)},
			[]string{"memory: 3072.0 MiB, at most 2048.0 MiB"}},
		"a claim": {
			Result{Attempts: 1, Honest: honestly(served, served, served), Claims: []Claim{{"kept", 1, 1}, {"bytes", 65, 64}}},
			[]string{"bytes: 65, at most 64"},
		},
	} {
		if diff := cmp.Diff(test.want, test.result.verdict(Default().Bounds)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func honestly(before, during, later Figures) map[string][phases]Figures {
	return map[string][phases]Figures{"send": {calm: before, attacked: during, after: later}}
}

func TestReport(t *testing.T) {
	t.Parallel()
	served := Figures{Count: 10, Success: 1, P99: 40}
	good := &Result{Attack: "good", Finding: "H0", Honest: honestly(served, served, served)}
	bad := &Result{Attack: "bad", Finding: "H0", Server: "old", Answers: map[string]int64{"200": 2, noAnswer: 1},
		Wrong: []string{"everything"}}
	if r := (Report{Results: []*Result{good}}); !r.Withstood() {
		t.Error("a report without a failure says that there is one")
	}
	r := Report{Results: []*Result{good, bad}}
	if r.Withstood() {
		t.Error("a report with a failure says that there is none")
	}
	var out bytes.Buffer
	for _, write := range []func() error{
		func() error { return good.Write(&out) }, func() error { return bad.Write(&out) },
		func() error { return r.WriteSummary(&out) }, func() error { return r.WriteJSON(&out) },
	} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"\nwithstood\n", "bad (H0) on old", "2 × 200, 1 × none", "FAILED everything", "1 FAILED",
		`"wrong": [`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, out.String())
		}
	}
}

func TestSelection(t *testing.T) {
	t.Parallel()
	findings, names := map[string]bool{}, map[string]bool{}
	for _, a := range Attacks() {
		if names[a.Name] || a.What == "" || a.Prepare == nil {
			t.Errorf("attack %q is not complete, or comes twice", a.Name)
		}
		names[a.Name], findings[a.Finding] = true, true
	}
	for _, finding := range []string{"H1", "H2", "H3", "H4", "H5", "H6", "H7", "H8", "H9", "H10", "H11", "H13", "P8"} {
		if !findings[finding] {
			t.Errorf("no attack for %s", finding)
		}
	}
	for name, want := range map[string]int{"all": len(Attacks()), "h3": 6, "bodies": 1} {
		if got, err := Selection(name); err != nil || len(got) != want {
			t.Errorf("%s: %d attacks, want %d: %v", name, len(got), want, err)
		}
	}
	if _, err := Selection("nonsense"); err == nil {
		t.Error("an attack without a name was found")
	}
}
