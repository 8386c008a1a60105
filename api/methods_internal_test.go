package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/errorlist"
	"mlsd/api/mlsapi"
	"mlsd/internal/redact"
	"mlsd/lexicons"
)

// The table has exactly the methods of the lexicons, and each row fits its method.
func TestMethods(t *testing.T) {
	t.Parallel()
	var nsids []string
	for _, m := range mlsapi.Methods() {
		nsids = append(nsids, m.NSID)
		p := methods[m.NSID]
		if (p.maxBody != 0) != (m.HasInput || m.BytesIn) {
			t.Errorf("%s: a longest body of %d bytes, but input is %t", m.NSID, p.maxBody, m.HasInput || m.BytesIn)
		}
		if (p.answerMemory != 0) == m.Streams {
			t.Errorf("%s: answer memory of %d bytes, but streams is %t", m.NSID, p.answerMemory, m.Streams)
		}
		// Finding S5: a lifetime that can be set has a floor, and the floor has a reason.
		if least := p.minLife; (p.recordLife != 0) != (least.Life != 0 && least.Because != "") ||
			p.recordLife < least.Life {
			t.Errorf("%s: a record lasts %s, and at least %+v", m.NSID, p.recordLife, least)
		}
		// A PDS can send a query again with the same token. H7: a query that claims uses it up, and
		// answers the copy itself.
		if procedure := m.Kind == mlsapi.Procedure; (p.token != reusable) != (procedure ||
			m.NSID == mlsapi.NSIDGetKeyPackages) || !procedure && p.token == usedByDispatch {
			t.Errorf("%s: token use %d does not fit its kind", m.NSID, p.token)
		}
	}
	if diff := cmp.Diff(nsids, slices.Sorted(maps.Keys(methods))); diff != "" {
		t.Errorf("methods (-lexicons +table):\n%s", diff)
	}
}

// Finding S1: the methods whose answers have a secret are those of which an export has no answer. What
// is a secret, its name says.
func TestSecretAnswersAreListed(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`(?i)(secret|token|ticket|session|password|seed)$`)
	var secrets []string
	for nsid := range methods {
		text, err := lexicons.Files.ReadFile(lexicons.Path(nsid))
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Defs struct {
				Main struct {
					Output struct {
						Schema struct{ Properties map[string]any }
					}
				}
			}
		}
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		for name := range file.Defs.Main.Output.Schema.Properties {
			if secret.MatchString(name) && !slices.Contains(secrets, nsid) {
				secrets = append(secrets, nsid)
			}
		}
	}
	slices.Sort(secrets)
	if diff := cmp.Diff(secrets, slices.Sorted(slices.Values(redact.SecretAnswers()))); diff != "" {
		t.Errorf("methods that answer with a secret (-lexicons +redact):\n%s", diff)
	}
}

// Every error of the table is one that package errorlist knows.
func TestErrorTableIsListed(t *testing.T) {
	t.Parallel()
	for _, row := range errorTable {
		if e, ok := errorlist.Find(row.name); !ok || e.Status < http.StatusBadRequest {
			t.Errorf("%s is answered, and listed as %+v", row.name, e)
		}
	}
}
