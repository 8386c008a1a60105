package attack

import (
	"bytes"
	"errors"
	"math"
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
		"withstood": {Result{Answers: some, Honest: honestly(served, slower(150), served)}, nil},
		"slow": {Result{Answers: some, Honest: honestly(served, slower(151), served)},
			[]string{"send: p99 151 ms during the attack, at most 150 ms"}},
		"above the floor": {Result{Answers: some, Honest: honestly(slower(100), slower(300), served)}, nil},
		"one failure": {Result{Answers: some, Honest: honestly(served, failing(0.999999), served)},
			[]string{"send: success 99.99% during the attack ()"}},
		"before the attack": {Result{Answers: some, Honest: honestly(failing(0.5), served, served)},
			[]string{"send: success 50.00% before the attack: this says nothing about it ()"}},
		"after the attack": {Result{Answers: some, Honest: honestly(served, served, failing(0))},
			[]string{"send: success 0% after the attack ()"}},
		"not measured afterward": {Result{Answers: some, Honest: honestly(served, served, Figures{})}, nil},
		"not measured": {Result{Answers: some, Honest: honestly(served, Figures{}, served)},
			[]string{"send: not measured"}},
		"no attack": {Result{Honest: honestly(served, served, served)}, []string{"the attack did nothing"}},
		"memory": {Result{Answers: some, Memory: 3 << 30, Honest: honestly(served, served, served)},
			[]string{"memory: 3072 MiB, at most 2048 MiB"}},
		"a claim": {
			Result{Answers: some, Honest: honestly(served, served, served),
				Claims: []Claim{{"kept", 1, 1}, {"bytes", 65, 64}, {"unknown", math.NaN(), 1}}},
			[]string{"bytes: 65, at most 64", "unknown: NaN, at most 1"},
		},
	} {
		if diff := cmp.Diff(test.want, test.result.verdict(Default().Bounds)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

var some = map[int]int64{200: 1}

func honestly(before, during, later Figures) map[string][phases]Figures {
	return map[string][phases]Figures{"send": {calm: before, attacked: during, after: later}}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	served := Figures{Count: 10, Success: 1, P99: 40}
	good := &Result{Attack: "good", Finding: "H0", Honest: honestly(served, served, served)}
	bad := &Result{Attack: "bad", Finding: "H0", Answers: map[int]int64{200: 2, 0: 1}, Wrong: []string{"everything"}}
	var out bytes.Buffer
	if err := errors.Join(good.Write(&out), bad.Write(&out)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nwithstood\n", "bad (H0)", "1 × 0, 2 × 200", "FAILED everything"} {
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
	for _, finding := range []string{"H1", "H2", "H3", "H4", "H5", "H9", "P8", "N1"} {
		if !findings[finding] {
			t.Errorf("no attack for %s", finding)
		}
	}
	for name, want := range map[string]int{"all": len(Attacks()), "h3": 3, "bodies": 1, "together": 1} {
		if got, err := Selection(name); err != nil || len(got) != want {
			t.Errorf("%s: %d attacks, want %d: %v", name, len(got), want, err)
		}
	}
	if _, err := Selection("nonsense"); err == nil {
		t.Error("an attack without a name was found")
	}
}
