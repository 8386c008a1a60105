package lexicons_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/google/go-cmp/cmp"
)

// frozen is the part of the contract that clients' generated code holds, written
// down a second time by hand. A line is
//
//	method kind | input or parameters | output | errors
//
// with fields as name! (required) or name? and a type as spell writes it. What the
// lexicons hold beyond it must be optional.
const frozen = `
createConvo procedure
  | groupId! string..128, cipherSuite! suite, idempotencyKey? string1..128, initialMembers? [..100]did, welcomeMessage? string,
    keyPackageHashes? []defs#keyPackageHashEntry, metadata? defs#convoMetadata
  | = defs#convoView
  | InvalidCipherSuite, KeyPackageNotFound, TooManyMembers
addMembers procedure
  | convoId! string, didList! [1..50]did, idempotencyKey? string1..128, commit? string, welcomeMessage? string,
    keyPackageHashes? []defs#keyPackageHashEntry
  | success! boolean, newEpoch! integer0..
  | ConvoNotFound, NotMember, KeyPackageNotFound, AlreadyMember, TooManyMembers
leaveConvo procedure
  | convoId! string, targetDid? did, commit? string
  | success! boolean, newEpoch! integer0..
  | ConvoNotFound, NotMember, LastMember
sendMessage procedure
  | convoId! string, ciphertext! bytes..10485760, epoch! integer0.., senderDid! did, idempotencyKey? string1..128,
    embedType? string..256, embedUri? uri
  | messageId! string, receivedAt! datetime
  | ConvoNotFound, NotMember, InvalidAsset, EpochMismatch, MessageTooLarge
getMessages query
  | convoId! string, limit? integer1..100=50, sinceMessage? string
  | messages! []defs#messageView, cursor? string
  | ConvoNotFound, NotMember, InvalidCursor
getConvos query
  | limit? integer1..100=50, cursor? string
  | conversations! []defs#convoView, cursor? string
  | InvalidCursor
publishKeyPackage procedure
  | keyPackage! string..65536, cipherSuite! suite, idempotencyKey? string1..128, expires? datetime
  |
  | InvalidKeyPackage, InvalidCipherSuite, ExpirationTooFar, TooManyKeyPackages
getKeyPackages query
  | dids! [1..100]did, cipherSuite? suite
  | keyPackages! []defs#keyPackageRef, missing? []did
  | TooManyDids, InvalidDid
getWelcome query
  | convoId! string
  | convoId! string, welcome! string
  | ConvoNotFound, NotMember, WelcomeNotFound
confirmWelcome procedure
  | convoId! string, success! boolean, errorDetails? string..1024
  | confirmed! boolean
  | ConvoNotFound, NotMember
getCommits query
  | convoId! string, fromEpoch! integer0.., toEpoch? integer0..
  | convoId! string, commits! []#commitView
  | ConvoNotFound, NotMember, InvalidEpochRange
getEpoch query
  | convoId! string
  | convoId! string, currentEpoch! integer0..
  | ConvoNotFound, NotMember
streamConvoEvents query
  | cursor? string..32, convoId? string
  | #messageEvent? member, #reactionEvent? member, #typingEvent? member, #infoEvent? member
  |
`

// frozenViews are the definitions, in the same spelling.
const frozenViews = `
defs#convoView | id! string, groupId! string..128, creator! did, members! []#memberView, epoch! integer0.., cipherSuite! suite,
    createdAt! datetime, lastMessageAt? datetime, metadata? #convoMetadata
defs#convoMetadata | name? string..128, description? string..512
defs#memberView | did! did, joinedAt! datetime, leafIndex? integer0.., credential? bytes
defs#messageView | id! string, convoId! string, sender! did, ciphertext! bytes, epoch! integer0.., seq! integer0.., createdAt! datetime,
    embedType? string..256, embedUri? uri
defs#keyPackageRef | did! did, keyPackage! string, cipherSuite! suite
defs#keyPackageHashEntry | did! did, hash! string
getCommits#commitView | epoch! integer0.., sender! did, commitData! bytes..10485760, createdAt! datetime
streamConvoEvents#messageEvent | cursor! string..32, message! defs#messageView
streamConvoEvents#reactionEvent | cursor! string..32, convoId! string, messageId! string, did! did, reaction! string..256, action! string..64
streamConvoEvents#typingEvent | cursor! string..32, convoId! string, did! did, isTyping! boolean
streamConvoEvents#infoEvent | cursor! string..32, info! string..1024
`

// loosened are frozen fields of inputs whose limit the server no longer has, as they are now. What an old
// client sends stays valid.
var loosened = map[string]string{
	"confirmWelcome input errorDetails": "? string", // a long reason was refused, and the failed join not recorded
}

const prefix = "blue.catbird.mls."

func suites() []string {
	return []string{
		"MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", "MLS_128_DHKEMP256_AES128GCM_SHA256_P256",
		"MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519", "MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448",
		"MLS_256_DHKEMP521_AES256GCM_SHA512_P521", "MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448",
	}
}

// spell writes a type the way the tables do.
func spell(def lexicon.SchemaDef) string {
	switch s := def.Inner.(type) {
	case lexicon.SchemaBoolean:
		return "boolean"
	case lexicon.SchemaInteger:
		out := "integer" + bounds(s.Minimum, s.Maximum)
		if s.Default != nil {
			out += fmt.Sprintf("=%d", *s.Default)
		}
		return out
	case lexicon.SchemaString:
		switch {
		case s.Format != nil:
			return *s.Format
		case slices.Equal(s.KnownValues, suites()) && s.MaxLength == nil:
			return "suite"
		}
		return "string" + bounds(s.MinLength, s.MaxLength)
	case lexicon.SchemaBytes:
		return "bytes" + bounds(s.MinLength, s.MaxLength)
	case lexicon.SchemaArray:
		return "[" + bounds(s.MinLength, s.MaxLength) + "]" + spell(s.Items)
	case lexicon.SchemaRef:
		return strings.TrimPrefix(s.Ref, prefix)
	}
	return fmt.Sprintf("%T", def.Inner)
}

func bounds(min, max *int) string {
	if min == nil && max == nil {
		return ""
	}
	out := ".."
	if min != nil {
		out = fmt.Sprint(*min) + out
	}
	if max != nil {
		out += fmt.Sprint(*max)
	}
	return out
}

// shape is what a table says about an object.
func shape(props map[string]lexicon.SchemaDef, required []string) map[string]string {
	out := map[string]string{}
	for name, def := range props {
		mark := "? "
		if slices.Contains(required, name) {
			mark = "! "
		}
		out[name] = mark + spell(def)
	}
	return out
}

// shapeOfBody is the shape of an object, or {"": "= ref"}.
func shapeOfBody(b *lexicon.SchemaBody) map[string]string {
	switch s := b.Schema.Inner.(type) {
	case lexicon.SchemaRef:
		return map[string]string{"": "= " + strings.TrimPrefix(s.Ref, prefix)}
	case lexicon.SchemaObject:
		return shape(s.Properties, s.Required)
	case lexicon.SchemaUnion: // open: others may come to it
		members := map[string]string{}
		for _, ref := range s.Refs {
			members[ref] = "? member"
		}
		return members
	}
	return nil
}

// compare demands the frozen fields as they are, and the others to be optional.
func compare(t *testing.T, where, frozen string, got map[string]string) {
	t.Helper()
	want := map[string]string{}
	for _, f := range split(frozen) {
		if strings.HasPrefix(f, "=") {
			want[""] = f
			continue
		}
		name, typ, _ := strings.Cut(f, " ")
		want[name[:len(name)-1]] = name[len(name)-1:] + " " + typ
		if now := loosened[where+" "+name[:len(name)-1]]; now != "" {
			want[name[:len(name)-1]] = now
		}
	}
	for name, spelt := range got {
		if _, ok := want[name]; !ok && strings.HasPrefix(spelt, "?") {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is not as frozen (-frozen +lexicon):\n%s", where, diff)
	}
}

func split(list string) []string {
	var out []string
	for _, s := range strings.Split(list, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// rows joins continuation lines, which are indented, and cuts at the bars.
func rows(table string) [][]string {
	var out [][]string
	for line := range strings.Lines(table) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if strings.HasPrefix(line, " ") {
			out[len(out)-1][0] += line
		} else {
			out = append(out, []string{line})
		}
	}
	for i, row := range out {
		out[i] = strings.Split(row[0], "|")
		for j := range out[i] {
			out[i][j] = strings.TrimSpace(out[i][j])
		}
	}
	return out
}

func TestFrozenMethods(t *testing.T) {
	t.Parallel()
	all := files(t)
	for _, row := range rows(frozen) {
		name, kind, _ := strings.Cut(row[0], " ")
		sf := all[prefix+name]
		if sf == nil {
			t.Errorf("no lexicon for %s", name)
			continue
		}
		switch s := sf.Defs["main"].Inner.(type) {
		case lexicon.SchemaQuery:
			wantKind(t, name, kind, "query")
			compare(t, name+" parameters", row[1], shape(s.Parameters.Properties, s.Parameters.Required))
			compare(t, name+" output", row[2], shapeOfBody(s.Output))
		case lexicon.SchemaProcedure:
			wantKind(t, name, kind, "procedure")
			compare(t, name+" input", row[1], shapeOfBody(s.Input))
			compare(t, name+" output", row[2], shapeOfBody(s.Output))
		default:
			t.Errorf("%s is a %T", name, s)
		}
	}
}

func wantKind(t *testing.T, name, frozen, got string) {
	t.Helper()
	if frozen != got {
		t.Errorf("%s is a %s, frozen as a %s", name, got, frozen)
	}
}

func TestFrozenViews(t *testing.T) {
	t.Parallel()
	all := files(t)
	for _, row := range rows(frozenViews) {
		file, def, _ := strings.Cut(row[0], "#")
		s, ok := all[prefix+file].Defs[def].Inner.(lexicon.SchemaObject)
		if !ok {
			t.Errorf("%s is no object", row[0])
			continue
		}
		compare(t, row[0], row[1], shape(s.Properties, s.Required))
	}
}

// Every frozen error has its name, and its place before the errors that came later. Those are in the landed
// contract, which loses none: see internal/lexgen.
func TestErrorNames(t *testing.T) {
	t.Parallel()
	want := map[string][]string{}
	for _, row := range rows(frozen) {
		name, _, _ := strings.Cut(row[0], " ")
		want[name] = split(row[3])
	}
	got := map[string][]string{}
	subscriptions := subscriptionErrors(t)
	for nsid, sf := range files(t) {
		var declared []lexicon.SchemaError
		switch s := sf.Defs["main"].Inner.(type) {
		case lexicon.SchemaQuery:
			declared = s.Errors
		case lexicon.SchemaProcedure:
			declared = s.Errors
		case lexicon.SchemaSubscription:
			declared = subscriptions[nsid]
		default:
			continue
		}
		name := strings.TrimPrefix(nsid, prefix)
		for _, e := range declared {
			got[name] = append(got[name], e.Name)
		}
	}
	for name, frozen := range want {
		if first := got[name][:min(len(frozen), len(got[name]))]; !slices.Equal(first, frozen) {
			t.Errorf("the errors of %s begin with %v, frozen are %v", name, first, frozen)
		}
	}
}
