package main

import (
	"strings"
	"testing"
)

// A small contract with one of everything that breaking compares.
const beforeGate = `{"lexicon":1,"id":"com.example.gate","defs":{
"main":{"type":"procedure","description":"d",
 "parameters":{"type":"params","required":["page"],"properties":{
  "page":{"type":"integer","minimum":1,"maximum":9,"default":3},
  "tags":{"type":"array","maxLength":5,"items":{"type":"string","maxLength":8}}}},
 "input":{"encoding":"application/json","schema":{"type":"object","required":["id"],"properties":{
  "id":{"type":"string","minLength":2,"maxLength":64},
  "who":{"type":"string","format":"did"},
  "suite":{"type":"string","knownValues":["a","b"]},
  "mode":{"type":"string","enum":["x","y"]},
  "blob":{"type":"bytes","maxLength":100},
  "both":{"type":"ref","ref":"#thing"},
  "flag":{"type":"boolean","default":true}}}},
 "output":{"encoding":"application/json","schema":{"type":"object","required":["ok"],"properties":{
  "ok":{"type":"boolean"},
  "note":{"type":"string","maxLength":50},
  "both":{"type":"ref","ref":"#thing"}}}},
 "errors":[{"name":"Gone"},{"name":"Late"}]},
"thing":{"type":"object","required":["n"],"properties":{"n":{"type":"integer","maximum":10},"opt":{"type":"string"}}},
"other":{"type":"object","required":["n"],"properties":{"n":{"type":"integer","maximum":10},"opt":{"type":"string"}}}
}}`

// The same for methods that stream.
const streamGate = `{"lexicon":1,"id":"com.example.stream","defs":{
"main":{"type":"subscription","description":"d",
 "parameters":{"type":"params","properties":{
  "cursor":{"type":"integer","minimum":0},
  "ids":{"type":"array","maxLength":5,"items":{"type":"string"}}}},
 "message":{"schema":{"type":"union","refs":["#one","#two"]}},
 "errors":[{"name":"Future"},{"name":"Slow"}]},
"one":{"type":"object","required":["n"],"properties":{"n":{"type":"integer","maximum":10},"opt":{"type":"string"}}},
"two":{"type":"object","required":["m"],"properties":{"m":{"type":"integer"}}}
}}`

const sentGate = `{"lexicon":1,"id":"com.example.sent","defs":{
"main":{"type":"query","description":"d",
 "parameters":{"type":"params","properties":{"cursor":{"type":"string"}}},
 "output":{"encoding":"text/event-stream","schema":{"type":"union","refs":["#one","#two"]}},
 "errors":[{"name":"Future"}]},
"one":{"type":"object","required":["n"],"properties":{"n":{"type":"integer","maximum":10},"opt":{"type":"string"}}},
"two":{"type":"object","required":["m"],"properties":{"m":{"type":"integer"}}}
}}`

func TestBreakingStreams(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, gate, old, new, want string }{
		{"message removed", streamGate, `["#one","#two"]`, `["#one"]`, "message: member #two removed"},
		{"message renamed", streamGate, `["#one","#two"]`, `["#one","#three"]`, "message: member #two removed"},
		{"message closed", streamGate, `["#one","#two"]`, `["#one","#two"],"closed":true`, "message: closed changed"},
		{"field of a message removed", streamGate, `,"opt":{"type":"string"}`, ``, "one (sent by the server).opt: field removed"},
		{"field of a message optional", streamGate, `"required":["m"],`, ``, "two (sent by the server).m: became optional"},
		{"field of a message wider", streamGate, `"maximum":10`, `"maximum":11`, "one (sent by the server).n: maximum changed"},
		{"parameter removed", streamGate, `"cursor":{"type":"integer","minimum":0},`, ``, "cursor: field removed"},
		{"parameter narrowed", streamGate, `"maxLength":5`, `"maxLength":4`, "ids: maxLength changed"},
		{"parameter required", streamGate, `"properties":{
  "cursor"`, `"required":["cursor"],"properties":{
  "cursor"`, "cursor: became required"},
		{"error removed", streamGate, `{"name":"Future"},`, ``, "error Future removed"},
		{"kind changed", streamGate, `"type":"subscription"`, `"type":"query"`, "kind changed from Subscription to Query"},
		{"event removed", sentGate, `["#one","#two"]`, `["#two"]`, "output: member #one removed"},
		{"events closed", sentGate, `["#one","#two"]`, `["#one","#two"],"closed":true`, "output: closed changed"},
		{"field of an event removed", sentGate, `,"opt":{"type":"string"}`, ``, "one (sent by the server).opt: field removed"},
		{"no event stream any more", sentGate, `text/event-stream`, `application/json`, "output encoding changed"},
		{"parameter of an event stream removed", sentGate, `"properties":{"cursor":{"type":"string"}}`, `"properties":{}`, "cursor: field removed"},
		{"error of an event stream removed", sentGate, `{"name":"Future"}`, `{"name":"Other"}`, "error Future removed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(breakingText(t, tc.gate, mutate(t, tc.gate, tc.old, tc.new)), "\n")
			if !strings.Contains(got, tc.want) {
				t.Errorf("want a change with %q, got:\n%s", tc.want, got)
			}
		})
	}
}

func TestNotBreakingStreams(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, gate, old, new string }{
		{"nothing", streamGate, "x", "x"},
		{"message added", streamGate, `["#one","#two"]`, `["#one","#two","#three"]`},
		{"field of a message added", streamGate, `"opt":`, `"fresh":{"type":"string"},"opt":`},
		{"parameter added", streamGate, `"ids":`, `"fresh":{"type":"string"},"ids":`},
		{"error added", streamGate, `"errors":[`, `"errors":[{"name":"New"},`},
		{"event added", sentGate, `["#one","#two"]`, `["#one","#two","#three"]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := breakingText(t, tc.gate, mutate(t, tc.gate, tc.old, tc.new)); len(got) > 0 {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestBreaking(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, old, new, want string }{
		{"optional field removed", `"who":{"type":"string","format":"did"},`, ``, "input.who: field removed"},
		{"optional field renamed", `"who":`, `"whom":`, "input.who: field removed"},
		{"output field removed", `"note":{"type":"string","maxLength":50},`, ``, "output.note: field removed"},
		{"parameter removed", `,
  "tags":{"type":"array","maxLength":5,"items":{"type":"string","maxLength":8}}`, ``, "tags: field removed"},
		{"error removed", `{"name":"Gone"},`, ``, "error Gone removed"},
		{"error renamed", `"Late"`, `"TooLate"`, "error Late removed"},
		{"maxLength lowered", `"maxLength":64`, `"maxLength":63`, "input.id: maxLength changed from 64 to 63"},
		{"maxLength added", `"suite":{"type":"string"`, `"suite":{"type":"string","maxLength":9`, "input.suite: maxLength changed from none to 9"},
		{"minLength raised", `"minLength":2`, `"minLength":3`, "input.id: minLength changed"},
		{"minimum raised", `"minimum":1`, `"minimum":2`, "page: minimum changed from 1 to 2"},
		{"maximum lowered", `"maximum":9`, `"maximum":8`, "page: maximum changed"},
		{"array shortened", `"maxLength":5,`, `"maxLength":4,`, "tags: maxLength changed"},
		{"element shortened", `"maxLength":8`, `"maxLength":7`, "tags[]: maxLength changed"},
		{"bytes shortened", `"maxLength":100`, `"maxLength":99`, "blob: maxLength changed"},
		{"output widened", `"maxLength":50`, `"maxLength":51`, "output.note: maxLength changed"},
		{"shared definition widened", `"maximum":10},"opt":{"type":"string"}}},
"other"`, `"maximum":11},"opt":{"type":"string"}}},
"other"`, "thing (sent by the server).n: maximum changed"},
		{"shared definition narrowed", `"maximum":10},"opt":{"type":"string"}}},
"other"`, `"maximum":9},"opt":{"type":"string"}}},
"other"`, "thing (sent by clients).n: maximum changed"},
		{"optional became required", `"required":["id"]`, `"required":["id","who"]`, "input.who: became required"},
		{"new and required", `"required":["id"],"properties":{`, `"required":["id","fresh"],"properties":{"fresh":{"type":"string"},`, "input.fresh: new and required"},
		{"parameter became required", `"required":["page"]`, `"required":["page","tags"]`, "tags: became required"},
		{"output became optional", `"required":["ok"],`, ``, "output.ok: became optional"},
		{"type changed", `"who":{"type":"string","format":"did"}`, `"who":{"type":"integer"}`, "input.who: type changed"},
		{"format changed", `"format":"did"`, `"format":"handle"`, "input.who: format changed"},
		{"format added", `"opt":{"type":"string"}}},
"other"`, `"opt":{"type":"string","format":"did"}}},
"other"`, "opt: format changed"},
		{"known value removed", `"knownValues":["a","b"]`, `"knownValues":["a"]`, "known value b removed"},
		{"enum value removed", `"enum":["x","y"]`, `"enum":["x"]`, "enum-values"},
		{"enum added", `"knownValues":["a","b"]`, `"knownValues":["a","b"],"enum":["a","b"]`, "suite: enum added"},
		{"integer default changed", `"default":3`, `"default":4`, "page: default changed from 3 to 4"},
		{"integer default removed", `,"default":3`, ``, "page: default changed from 3 to none"},
		{"boolean default changed", `"default":true`, `"default":false`, "flag: default changed"},
		{"definition removed", `,
"other":{"type":"object","required":["n"],"properties":{"n":{"type":"integer","maximum":10},"opt":{"type":"string"}}}`, ``, "#other: definition removed"},
		{"refers elsewhere", `"both":{"type":"ref","ref":"#thing"},
  "flag"`, `"both":{"type":"ref","ref":"#other"},
  "flag"`, "refers to com.example.gate#other"},
		{"encoding changed", `"output":{"encoding":"application/json"`, `"output":{"encoding":"text/plain"`, "output encoding changed"},
		{"kind changed", `"type":"procedure"`, `"type":"query"`, "kind changed from Procedure to Query"},
		{"method gone", `"id":"com.example.gate"`, `"id":"com.example.gates"`, "lexicon removed"},
		{"nullable", `"required":["n"],"properties":{"n":{"type":"integer","maximum":10},"opt":{"type":"string"}}},
"other"`, `"required":["n"],"nullable":["n"],"properties":{"n":{"type":"integer","maximum":10},"opt":{"type":"string"}}},
"other"`, "object-nullable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(breakingText(t, beforeGate, mutate(t, beforeGate, tc.old, tc.new)), "\n")
			if !strings.Contains(got, tc.want) {
				t.Errorf("want a change with %q, got:\n%s", tc.want, got)
			}
		})
	}
}

func TestNotBreaking(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, old, new string }{
		{"nothing", "x", "x"},
		{"description", `"description":"d"`, `"description":"e"`},
		{"optional input field added", `"who":`, `"fresh":{"type":"string"},"who":`},
		{"optional output field added", `"note":`, `"fresh":{"type":"string"},"note":`},
		{"error added", `"errors":[`, `"errors":[{"name":"New"},`},
		{"input widened", `"maxLength":64`, `"maxLength":65`},
		{"input unbounded", `,"maxLength":64`, ``},
		{"minimum lowered", `"minimum":1`, `"minimum":0`},
		{"output narrowed", `"maxLength":50`, `"maxLength":49`},
		{"known value added", `"knownValues":["a","b"]`, `"knownValues":["a","b","c"]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := breakingText(t, beforeGate, mutate(t, beforeGate, tc.old, tc.new)); len(got) > 0 {
				t.Errorf("got %q", got)
			}
		})
	}
}

// mutate replaces the first occurrence, which must be there.
func mutate(t *testing.T, gate, from, to string) string {
	t.Helper()
	if !strings.Contains(gate, from) {
		t.Fatalf("the contract has no %q", from)
	}
	return strings.Replace(gate, from, to, 1)
}

func breakingText(t *testing.T, before, after string) []string {
	t.Helper()
	a, err := parse([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	b, err := parse([]byte(after))
	if err != nil {
		t.Fatal(err)
	}
	return breaking(schemas{a}, schemas{b})
}
