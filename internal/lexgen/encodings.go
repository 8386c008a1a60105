package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"
)

// encoding is how a value is written, of which a lexicon says only a part. Its text is the name of
// the encoding on the pages.
type encoding string

const (
	encodingBytes    encoding = "bytes"
	encodingBase64   encoding = "base64 text"
	encodingHex      encoding = "hexadecimal text"
	encodingID       encoding = "id"
	encodingPosition encoding = "position"
	encodingSecret   encoding = "secret text"
	encodingKey      encoding = "idempotency key"
	encodingDID      encoding = "DID"
	encodingTime     encoding = "time"
	encodingURI      encoding = "URI"
	encodingInteger  encoding = "integer"
	encodingBoolean  encoding = "true or false"
	encodingName     encoding = "name"
	encodingText     encoding = "text"
)

// encodingRules say how values look: in JSON and in parameters, and in the frames of
// subscribeConvoEvents. Most methods have fields of the encodings with every set.
var encodingRules = []struct {
	encoding    encoding
	json, frame string
	every       bool
}{
	{encodingBytes, "`{\"$bytes\": \"AAEC/w\"}`: standard base64 (RFC 4648 §4). You may pad it; the server does not. " +
		"Refused: the URL-safe alphabet, white space, unused bits that are not zero", "byte string", false},
	{encodingBase64, "`\"AAEC_w\"`: base64 in a text. You may use the standard or the URL-safe alphabet, padded or " +
		"not; the server uses the URL-safe one, unpadded (RFC 4648 §5). Refused: both alphabets in one text, white space, " +
		"unused bits that are not zero", "–", false},
	{encodingHex, "`\"00ff10\"`: two digits for each byte. The server writes them in lower case, and takes a `groupId` " +
		"in lower case only", "text", false},
	{encodingID, "`\"0192f3a4-…\"`: a UUID in lower case, made by the server: UUIDv7", "text", true},
	{encodingPosition, "A text that only the server understands: a place in a list or in the stream. Send it back " +
		"unchanged", "text; in frames `cursor` is an integer", false},
	{encodingSecret, "A text that only the server understands, and that gives access. Keep it in the system's key " +
		"store", "–", false},
	{encodingKey, "1 to 128 printable ASCII characters without outer spaces, for instance a UUID. Direct clients may " +
		"send it as the header `Idempotency-Key` instead; beside a key in the body, the header is not read", "–", true},
	{encodingDID, "`\"did:plc:…\"`: a DID, never a handle", "text", true},
	{encodingTime, "`\"2026-11-22T09:30:00.123Z\"`: RFC 3339. The server writes UTC, with milliseconds and `Z`", "text",
		true},
	{encodingURI, "A URI with its scheme", "text", true},
	{encodingInteger, "A number without fraction and exponent, at most 2^53 − 1. MLS allows larger epochs; the " +
		"server refuses them", "integer", true},
	{encodingBoolean, "`true` or `false`", "boolean", true},
	{encodingName, "One of a few words or names, which the method's page lists. A name that you do not know is no " +
		"error", "text", true},
	{encodingText, "UTF-8 without U+0000. Limits count bytes", "text", true},
}

// encodingsByName maps the names of texts to encodings that the lexicons only describe.
var encodingsByName = func() map[string]encoding {
	all := map[string]encoding{idempotencyKeyField: encodingKey}
	for e, names := range map[encoding]string{
		encodingHex: "groupId successorGroupId keyPackageRef keyPackageRefs hash deviceId keyId sha256",
		encodingID: "convoId convoIds muted successorConvoId predecessorConvoId messageId id erasureId reportId " +
			"attachmentId",
		encodingPosition: "cursor position sinceMessage",
		encodingSecret:   "session refreshToken ticket confirmationToken secret",
		encodingText: "description name errorDetails embedType error message info reaction receipt receipts topic type " +
			"data token url algorithm head keys logHead failure",
	} {
		for _, name := range strings.Fields(names) {
			all[name] = e
		}
	}
	for name := range base64Fields {
		all[name] = encodingBase64
	}
	return all
}()

// encodingOf returns the encoding of a definition, or "" if the definition has its own fields.
func encodingOf(name string, def lexicon.SchemaDef) (encoding, error) {
	switch s := def.Inner.(type) {
	case lexicon.SchemaBoolean:
		return encodingBoolean, nil
	case lexicon.SchemaInteger:
		return encodingInteger, nil
	case lexicon.SchemaBytes:
		return encodingBytes, nil
	case lexicon.SchemaString:
		switch text(s.Format) {
		case "did":
			return encodingDID, nil
		case "datetime":
			return encodingTime, nil
		case "uri":
			return encodingURI, nil
		}
		if len(s.Enum)+len(s.KnownValues) > 0 {
			return encodingName, nil
		}
		if e, ok := encodingsByName[name]; ok {
			return e, nil
		}
		return "", errUnsupported("a text whose encoding is not in encodings.go", name)
	}
	return "", nil
}

// link links to the encoding's row, unless every reader knows the encoding.
func (e encoding) link() string {
	if e == encodingText || e == encodingURI || e == encodingName {
		return string(e)
	}
	return "[" + string(e) + "](../ENCODINGS.md)"
}

// encodingUses maps each encoding to its fields, and each field to the pages that have it.
type encodingUses map[encoding]map[string][]string

func (u encodingUses) add(e encoding, field, page string) {
	if u[e] == nil {
		u[e] = map[string][]string{}
	}
	if !slices.Contains(u[e][field], page) {
		u[e][field] = append(u[e][field], page)
	}
}

// encodings writes the page of encodings.
func (p *page) encodings() {
	p.p("%s", fixed("encodings.head"))
	for _, rule := range encodingRules {
		p.p("| **%s** | %s | %s |", rule.encoding, rule.json, rule.frame)
	}
	p.p("%s", fixed("encodings.fields"))
	for _, rule := range encodingRules {
		for i, field := range slices.Sorted(maps.Keys(p.encoding[rule.encoding])) {
			if rule.every {
				break
			}
			first := ""
			if i == 0 {
				first = string(rule.encoding)
			}
			p.p("| %s | `%s` | %s |", first, field, pageLinks(p.encoding[rule.encoding][field]))
		}
	}
	p.p("\nThese fields have the same encoding in all methods:\n\n| encoding | fields |\n|---|---|")
	for _, rule := range encodingRules {
		if rule.every {
			p.p("| %s | %s |", rule.encoding, codeList(slices.Sorted(maps.Keys(p.encoding[rule.encoding]))))
		}
	}
	p.p("%s", fixed("encodings.frames"))
}

func pageLinks(pages []string) string {
	links := make([]string, len(pages))
	for i, name := range pages {
		label := name
		if name == "TYPES" {
			label = "shared types"
		}
		links[i] = fmt.Sprintf("[%s](api/%s.md)", label, name)
	}
	return strings.Join(links, ", ")
}
