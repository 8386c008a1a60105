package convos

import (
	"fmt"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// Who may do what: every role and every act. docs/COMMITS.md shows the table.
func TestRights(t *testing.T) {
	t.Parallel()
	roles := []role{outsider, externalSender, member, formerAdmin, admin}
	var table strings.Builder
	table.WriteString("| | no member | external sender | member | admin until this epoch | admin |\n")
	table.WriteString("|---|---|---|---|---|---|\n")
	for _, row := range []struct {
		does string
		act  act
		want string // one letter for each role
	}{
		{"add people; further devices of its own", addPeople, "--yyy"},
		{"leave", leaveItself, "--yyy"},
		{"remove devices of its own", removeOwnLeaf, "--yyy"},
		{"remove devices of people who are not on the roster", removeDeparture, "--yyy"},
		{"remove others, several in one commit", removePerson, "-y--y"},
		{"replace the extensions of the GroupContext; reinitialise", replaceContext, "----y"},
		{"have its removals committed by another member", commitProposed, "-y-yy"},
		{"`promoteAdmin`, `demoteAdmin`", changeRoles, "----y"},
		{"`updateConvo`", rename, "----y"},
		{"`resetConvo`, after accepting the convo", reset, "--yyy"},
	} {
		fmt.Fprintf(&table, "| %s", row.does)
		for i, r := range roles {
			answer, letter := "", byte('-')
			if may(r, row.act) {
				answer, letter = "yes", 'y'
			}
			if letter != row.want[i] {
				t.Errorf("%s, role %d: %c, want %c", row.does, r, letter, row.want[i])
			}
			fmt.Fprintf(&table, " | %s", answer)
		}
		table.WriteString(" |\n")
	}
	t.Log("\n" + table.String())
	moduletest.Table(t, "docs/COMMITS.md", "Who may change what", table.String())
}
