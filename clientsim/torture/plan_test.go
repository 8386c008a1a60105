package torture

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/clientsim/history"
	"mlsd/clientsim/torture/pgwire"
)

func TestPlanFollowsFromItsSeed(t *testing.T) {
	t.Parallel()
	plan := NewPlan(7, time.Minute, 3)
	if diff := cmp.Diff(plan, NewPlan(7, time.Minute, 3)); diff != "" {
		t.Errorf("the same seed gives another plan:\n%s", diff)
	}
	if cmp.Equal(plan, NewPlan(8, time.Minute, 3)) {
		t.Error("another seed gives the same plan")
	}
	kinds, faults := map[Kind]bool{}, map[string]bool{}
	for _, s := range NewPlan(7, time.Hour, 3) {
		kinds[s.Kind], faults[s.Fault.Name()] = true, true
		if s.At >= time.Hour || s.Node < 0 || s.Node > 2 || !s.Fault.Valid() {
			t.Errorf("a bad step: %s", s)
		}
	}
	for _, kind := range append(processKinds(), Wire) {
		if !kinds[kind] {
			t.Errorf("no %s in an hour", kind)
		}
	}
	for _, action := range pgwire.Actions() {
		for _, point := range pgwire.Points() {
			if f := (pgwire.Fault{Point: point, Action: action}); f.Valid() && !faults[f.Name()] {
				t.Errorf("no %s in an hour", f.Name())
			}
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	var violations []history.Violation
	for i := range maxShown {
		violations = append(violations,
			history.Violation{Kind: history.Lost, What: fmt.Sprintf("message %d of did:plc:a%d, %s", i, i, uuid.NewString())})
	}
	violations = append(violations, history.Violation{Kind: history.Duplicated, What: "another"})
	r := &Report{
		Seed: 7, For: time.Minute, Faults: map[string]int{"cut before commit": 3, "kill -9 of a node": 2}, Recoveries: 4,
		Violations: violations,
	}
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"seed 7, 1m0s\n", "5 faults, 4 recoveries", "lost 20, doubled 1, broken 0\n",
		"    and 19 more like this\n  duplicated: another\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, out.String())
		}
	}
}
