package main

import (
	"strings"
	"testing"
)

// A small contract with one of everything that the Swift client's types have.
const swiftContract = `{"lexicon":1,"id":"com.example.post","defs":{
"main":{"type":"procedure","description":"Post a thing.",
 "input":{"encoding":"application/json","schema":{"type":"object","required":["who"],"properties":{
  "idempotencyKey":{"type":"string"},
  "keyPackage":{"type":"string"},
  "mode":{"type":"string","knownValues":["in_flight"]},
  "suite":{"type":"string","knownValues":["MLS_128"]},
  "count":{"type":"integer","minimum":1},
  "link":{"type":"string","format":"uri"},
  "name":{"type":"string","maxLength":8},
  "things":{"type":"array","maxLength":3,"items":{"type":"ref","ref":"#thing"}},
  "when":{"type":"string","format":"datetime"},
  "who":{"type":"string","format":"did"}}}},
 "errors":[{"name":"GoneAway","description":"It is gone."}]},
"thing":{"type":"object","properties":{"blob":{"type":"bytes","maxLength":9}}},
"other":{"type":"object","properties":{"blob":{"type":"bytes","maxLength":9}}}
}}`

func swiftText(t *testing.T, contract string) (string, error) {
	t.Helper()
	sf, err := parse([]byte(contract))
	if err != nil {
		t.Fatal(err)
	}
	files, err := generateSwift(schemas{sf})
	var all strings.Builder
	for _, content := range files {
		all.Write(content)
	}
	return all.String(), err
}

func TestSwift(t *testing.T) {
	t.Parallel()
	got, err := swiftText(t, swiftContract)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"/// Post a thing.\npublic enum Post: Procedure {",
		`public static let nsid = "com.example.post"`,
		"public struct Input: Codable, Hashable, Sendable, Checked, Keyed {",
		"idempotencyKey: String? = newIdempotencyKey(),\n",
		"try Field(\"count\").check(count, in: 1...Int.max)\n",
		"try Field(\"link\").check(link, isURI: true)\n",
		"try Field(\"name\").check(name, bytes: 0...8)\n",
		"try Field(\"things\").check(things, count: 0...3)\n",
		"try Field(\"who\").check(who)\n",
		"public var who: DID\n", "public var when: Timestamp?", "public var suite: String?",
		"public var keyPackage: Base64Text?", "public var things: [Post.Thing]?", "public var blob: Bytes?",
		"public struct Mode: OpenEnum {", `public static let inFlight = Self(rawValue: "in_flight")`,
		"public typealias Output = NoBody",
		"    public struct Thing: Codable, Hashable, Sendable, Checked {",
		"try Field(\"blob\").check(blob, bytes: 0...9)\n",
		"    public struct Other: Codable, Hashable, Sendable {", // no input uses it
		`public static let goneAway = Self(rawValue: "GoneAway")`,
		`"com.example.post": Post.self,`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Index(got, "who: DID,") > strings.Index(got, "idempotencyKey: String? = newIdempotencyKey()") {
		t.Error("the initialiser does not begin with the required fields")
	}
}

// What the emitter cannot write it refuses.
func TestSwiftRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ old, new, want string }{
		{`"when":`, `"default":`, "reserved name"},
		{`"format":"datetime"`, `"format":"cid"`, "format cid"},
		{`{"type":"bytes","maxLength":9}`, `{"type":"union","refs":["#thing"]}`, "SchemaUnion"},
		{`"type":"ref","ref":"#thing"`, `"type":"string","knownValues":["a"]`, "known values"},
		{`application/json`, `text/plain`, "without a JSON schema"},
		{`"description":"Post a thing."`, `"parameters":{"type":"params","properties":{}}`, "parameters of a procedure"},
	} {
		_, err := swiftText(t, mutate(t, swiftContract, tc.old, tc.new))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v", tc.want, err)
		}
	}
}
