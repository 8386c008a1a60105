package history_test

import (
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
)

// The model refuses what the rights table refuses, and sees admins that should not be.
func TestModelOfRoles(t *testing.T) {
	t.Parallel()
	const b, a, c, out syntax.DID = "did:plc:b", "did:plc:a", "did:plc:c", "did:plc:out"
	m := history.NewModel()
	m.Created("x", nil, 1, false, b, []syntax.DID{a, c})
	for i, step := range []struct {
		by, of  syntax.DID
		promote bool
		want    string
	}{
		{out, a, true, mlsapi.ErrConvoNotFound},
		{a, c, true, mlsapi.ErrNotPermitted},
		{a, a, false, ""},
		{b, b, false, mlsapi.ErrNotPermitted},
		{b, out, true, "InvalidRequest"},
		{b, c, true, ""},
		{c, b, false, ""},
		{b, b, false, ""},
		{b, b, true, mlsapi.ErrNotPermitted},
	} {
		if got := m.RefusesRole("x", step.by, step.of, step.promote); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		} else if got == "" {
			m.RoleChanged("x", step.of, step.promote)
		}
	}
	admins := func(ok bool, dids ...syntax.DID) {
		t.Helper()
		if err := m.AdminsAre("x", dids); (err == nil) != ok {
			t.Errorf("%v are the admins: %v", dids, err)
		}
	}
	admins(false, b)
	admins(false, b, c)
	admins(true, c)
	m.Left("x", c, c, 3)
	if got := m.RefusesRole("x", c, a, true); got != mlsapi.ErrNotMember {
		t.Errorf("a former admin: %q", got)
	}
	admins(false)
	admins(false, a, b)
	admins(false, c)
	admins(true, a) // a founder, as b is, and the first of both by DID
	admins(false, b)
	if n := m.HandedOver(); n != 1 {
		t.Errorf("handed over %d times", n)
	}
}
