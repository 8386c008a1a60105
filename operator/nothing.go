package operator

import (
	"reflect"
	"strings"
)

// elsewhere says where else to look if a question finds nothing, by the question's verb.
var elsewhere = map[string]string{
	"request": "a known caller's request leaves a row if it is refused, fails or is slow, and a sample of the others " +
		"does, for MLSD_REQUEST_RETENTION; the log has a line of every request, also of an unknown caller's",
	"reservations": "inspect records counts the work that has ended, and inspect audit \"METHOD KEY\" has its steps",
	"records": "inspect lifetimes says how long records last, and the record of a message is its entry in the log; " +
		"without --since all are counted",
	"conflicts":   "a longer --since looks further back; inspect request --refused has single requests",
	"welcomes":    "inspect audit ID has what became of one Welcome",
	"keypackages": "inspect audit REF has what became of one KeyPackage",
	"lifetimes":   "inspect records counts what there is",
	"quotas":      "uses are counted from 00:00 UTC, and by the full DID; inspect records --by-caller has single methods",
	"disputes":    "only forks and disputes are here; mlsd admin convo show CONVO says whether there is such a convo",
	"audit": "an id is that of a convo or Welcome, a KeyPackageRef in hexadecimal, or \"METHOD KEY\"; inspect " +
		"request has " +
		"requests, and inspect actions what operators did",
	"actions": "only what was done by mlsd admin, the console or its listener is here; inspect audit ID has what the " +
		"server did",
	"push": "jobs that are sent are deleted; mlsd_push_attempts_total counts them, and mlsd admin account show " +
		"DID lists " +
		"an account's devices",
	"services": "budgets are there from a service's first invitation to 90 days after its last one; inspect request " +
		"--refused has what was refused",
}

// Nothing is the text of an answer to a question that found nothing: what was looked for, and where
// else to look.
func (m Method) Nothing(c Call) string {
	var asked []string // as on the command line
	for _, p := range m.Params {
		switch text := c.Params[p.Name]; {
		case text == "":
		case p.Flag():
			asked = append(asked, "--"+p.Name)
		case p.Argument():
			asked = append(asked, text)
		default:
			asked = append(asked, "--"+p.Name+" "+text)
		}
	}
	if len(asked) == 0 {
		return "nothing found: " + elsewhere[m.Verb]
	}
	return "nothing found for " + strings.Join(asked, " ") + ": " + elsewhere[m.Verb]
}

// foundNothing reports whether a result consists of lists, and all of them are empty.
func foundNothing(result any) bool {
	v := reflect.ValueOf(result)
	for _, c := range columns(v.Type()) {
		if f := v.Field(c.field); f.Kind() != reflect.Slice || f.Len() > 0 {
			return false
		}
	}
	return true
}
