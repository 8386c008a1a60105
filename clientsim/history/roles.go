package history

import (
	"fmt"
	"maps"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// Admins returns the admins of a convo, sorted. It returns none if the last admin has left and
// AdminsAre has not seen yet who became one.
func (m *Model) Admins(convo string) []syntax.DID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.convos[convo].Admins()
}

// Admins returns the admins, sorted.
func (c *ConvoModel) Admins() []syntax.DID {
	all := slices.Sorted(maps.Keys(c.Members))
	return slices.DeleteFunc(all, func(did syntax.DID) bool { return !c.Members[did].admin })
}

// RefusesRole returns the error that the server must answer if by makes of an admin, or demotes it.
// It is "" if the server must do it.
func (m *Model) RefusesRole(convo string, by, of syntax.DID, promote bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.convos[convo]
	caller, target := c.Members[by], c.Members[of]
	switch {
	case caller == nil:
		return mlsapi.ErrConvoNotFound
	case !caller.Live:
		return mlsapi.ErrNotMember
	case !caller.admin && (by != of || promote): // a repeated demotion of itself has no effect
		return mlsapi.ErrNotPermitted
	case target == nil || !target.Live:
		return "InvalidRequest"
	case !promote && target.admin && len(c.Admins()) == 1:
		return mlsapi.ErrNotPermitted
	}
	return ""
}

// RoleChanged records that a member was made an admin, or demoted.
func (m *Model) RoleChanged(convo string, of syntax.DID, promote bool) {
	m.record(func() { m.convos[convo].Members[of].admin = promote })
}

// AdminsAre compares the admins that the server names with the record. If the last admin has left,
// the server must name one other member: a founder who has accepted, and the first of them by DID.
// The creator is one of these, if it has not left. AdminsAre then records who it is.
func (m *Model) AdminsAre(convo string, got []syntax.DID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.convos[convo]
	want := c.Admins()
	if len(want) > 0 {
		if !slices.Equal(got, want) {
			return fmt.Errorf("the admins are %v, want %v", got, want)
		}
		return nil
	}
	if len(got) != 1 || c.Members[got[0]] == nil || !c.Members[got[0]].Live {
		return fmt.Errorf("the last admin has left, and the admins are %v, want one member", got)
	}
	heir := got[0]
	if c.Members[c.Creator].Live && (c.Members[heir].from > 1 || heir > c.Creator) {
		return fmt.Errorf("%s is the new admin, but %s has been there longer", heir, c.Creator)
	}
	c.Members[heir].admin = true
	m.handedOver++
	return nil
}

// HandedOver returns how often a convo got a new admin because its last one went.
func (m *Model) HandedOver() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handedOver
}
