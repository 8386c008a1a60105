package lexicons_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/internal/moduletest"
)

// scopesPage has the table of methods and permission sets, between two marks.
const scopesPage = "docs/clients/OAUTH.md"

const namespace = "blue.catbird.mls."

// sets are the permission sets (https://atproto.com/specs/permission), from the least to all. Each has
// what the one before has.
var sets = []string{"authRead", "authMessaging", "authFull"}

// permissionsOf returns the permissions of a set.
func permissionsOf(t *testing.T, set string) []lexicon.SchemaPermission {
	t.Helper()
	sf, ok := files(t)[namespace+set]
	if !ok {
		t.Fatalf("there is no permission set %s", set)
	}
	main, ok := sf.Defs["main"].Inner.(lexicon.SchemaPermissionSet)
	if !ok || main.Title == nil || *main.Title == "" || main.Detail == nil || *main.Detail == "" ||
		len(main.Permissions) == 0 {
		t.Fatalf("%s is %+v", set, main)
	}
	return main.Permissions
}

// methodsOf returns the methods that a permission set lets an app call.
func methodsOf(t *testing.T, set string) []string {
	t.Helper()
	p := permissionsOf(t, set)[0]
	if p.Resource != "rpc" || !p.InheritAud || !slices.IsSorted(p.LXM) {
		t.Errorf("%s: the permission is %+v", set, p)
	}
	return p.LXM
}

// Each method belongs to a permission set, but that which services call. An app that may only read
// changes nothing and claims nothing, and who may only chat cannot buy a session, which would be good
// for every method, nor change who may invite, nor export or erase anything.
func TestPermissionSets(t *testing.T) {
	t.Parallel()
	var of [][]string
	for _, set := range sets {
		of = append(of, methodsOf(t, set))
	}
	table := "| method | `" + strings.Join(sets, "` | `") + "` |\n|---" + strings.Repeat("|---", len(sets)) + "|\n"
	for _, m := range mlsapi.Methods() {
		name := m.NSID[strings.LastIndexByte(m.NSID, '.')+1:]
		row := "| " + name
		for i, methods := range of {
			has := slices.Contains(methods, m.NSID)
			if i > 0 && slices.Contains(of[i-1], m.NSID) && !has {
				t.Errorf("%s lacks %s, which the set before it has", sets[i], name)
			}
			row += map[bool]string{true: " | yes", false: " | "}[has]
		}
		table += row + " |\n"
		if ofServices := strings.HasPrefix(name, "deliver"); slices.Contains(of[2], m.NSID) == ofServices {
			t.Errorf("%s is in a permission set: %v", name, ofServices)
		} else if ofServices {
			continue
		}
		changes := m.Kind == mlsapi.Procedure && name != "getSubscriptionTicket" ||
			slices.Contains([]string{"getWelcome", "getKeyPackages", "exportMyData"}, name)
		if changes && slices.Contains(of[0], m.NSID) {
			t.Errorf("authRead has %s, which changes or claims something", name)
		}
		administers := slices.Contains([]string{"createSession", "refreshSession", "deleteSession", "eraseMyAccount",
			"exportMyData", "setCursorPolicy", "setInvitationPolicy"}, name)
		if administers == slices.Contains(of[1], m.NSID) {
			t.Errorf("authMessaging has %s: %v", name, !administers)
		}
	}
	for i, methods := range of {
		for _, nsid := range methods {
			if !slices.ContainsFunc(mlsapi.Methods(), func(m mlsapi.Method) bool { return m.NSID == nsid }) {
				t.Errorf("%s has %s, which is no method", sets[i], nsid)
			}
		}
	}
	moduletest.Table(t, scopesPage, "", table)
	page := moduletest.Files(t, ".md")[scopesPage]
	for _, set := range sets {
		if scope := "include:" + namespace + set + "?aud="; !strings.Contains(page, scope) {
			t.Errorf("%s does not show the scope %s", scopesPage, scope)
		}
	}
}

// An app that takes part in chats lists its device in the person's repository. Only an app with all
// rights names the person's service there too, and an app that may only read writes nothing.
func TestPermissionsOfRecords(t *testing.T) {
	t.Parallel()
	lists := []lexicon.SchemaPermission{{
		Type: "permission", Resource: "repo", Collection: []string{namespace + "device"},
		Action: []string{"create", "update", "delete"},
	}}
	names := lexicon.SchemaPermission{
		Type: "permission", Resource: "repo", Collection: []string{namespace + "profile"},
		Action: []string{"create", "update"},
	}
	for set, want := range map[string][]lexicon.SchemaPermission{
		"authRead": {}, "authMessaging": lists, "authFull": append(slices.Clone(lists), names),
	} {
		if diff := cmp.Diff(want, permissionsOf(t, set)[1:]); diff != "" {
			t.Errorf("%s, besides methods (-want +got):\n%s", set, diff)
		}
	}
	for _, record := range []string{"device", "profile"} {
		if page := moduletest.Files(t, ".md")[scopesPage]; !strings.Contains(page, "repo:"+namespace+record) {
			t.Errorf("%s does not name the scope of the record %s", scopesPage, record)
		}
	}
}

// The lists of devices outlive every release: clients of all versions read them. 4,096 bytes are
// enough for the key of every suite that is known.
func TestDeviceRecord(t *testing.T) {
	t.Parallel()
	record, ok := files(t)[namespace+"device"].Defs["main"].Inner.(lexicon.SchemaRecord)
	if !ok || record.Key != "any" {
		t.Fatalf("device is %+v", record)
	}
	if got, want := shape(record.Record.Properties, record.Record.Required), map[string]string{
		"signatureKey": "! bytes1..4096", "cipherSuite": "! suite", "name": "? string..640", "createdAt": "! datetime",
	}; !cmp.Equal(want, got) {
		t.Errorf("device has (-want +got):\n%s", cmp.Diff(want, got))
	}
}
