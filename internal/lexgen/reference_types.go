package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"
)

// typeOf returns the type of a property in words, with its limits.
func (p *page) typeOf(name string, def lexicon.SchemaDef) (string, error) {
	e, err := encodingOf(name, def)
	if err != nil {
		return "", err
	}
	if e != "" {
		p.encoding.add(e, name, p.name)
	}
	switch s := def.Inner.(type) {
	case lexicon.SchemaBoolean:
		return string(e), nil
	case lexicon.SchemaInteger:
		return string(e) + integerRange(s), nil
	case lexicon.SchemaBytes:
		return e.link() + lengths(s.MinLength, s.MaxLength, "byte"), nil
	case lexicon.SchemaString:
		return p.stringWords(e, s), nil
	case lexicon.SchemaRef:
		return p.link(s.Ref), nil
	case lexicon.SchemaArray:
		item, err := p.typeOf(name, s.Items)
		return "list" + lengths(s.MinLength, s.MaxLength, "element") + "; each: " + item, err
	}
	return "", errUnsupported(fmt.Sprintf("%T", def.Inner), name)
}

func (p *page) stringWords(e encoding, s lexicon.SchemaString) string {
	unit := "byte"
	if e == encodingBase64 {
		unit = "character"
	}
	limits := lengths(s.MinLength, s.MaxLength, unit)
	switch {
	case isSuite(s.KnownValues):
		link := "TYPES.md#cipher-suites"
		if p.name == "TYPES" {
			link = "#cipher-suites"
		}
		return "[cipher suite](" + link + ")"
	case len(s.Enum) > 0:
		words := "one of " + codeList(s.Enum)
		if s.Default != nil {
			words += "; without it `" + *s.Default + "`"
		}
		return words
	case len(s.KnownValues) > 0:
		return codeList(s.KnownValues) + "; others may come"
	case e == encodingKey:
		return e.link()
	}
	return e.link() + limits
}

func isSuite(values []string) bool {
	return slices.Contains(values, "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519")
}

func codeList(values []string) string { return "`" + strings.Join(values, "`, `") + "`" }

func integerRange(s lexicon.SchemaInteger) string {
	words := ""
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		words = fmt.Sprintf(", %d to %d", *s.Minimum, *s.Maximum)
	case s.Minimum != nil:
		words = fmt.Sprintf(", at least %d", *s.Minimum)
	case s.Maximum != nil:
		words = fmt.Sprintf(", at most %d", *s.Maximum)
	}
	if s.Default != nil {
		words += fmt.Sprintf("; without it %d", *s.Default)
	}
	return words
}

// lengths returns the limits of a text, of bytes or of a list, in words.
func lengths(least, most *int, unit string) string {
	switch {
	case least != nil && most != nil && *least == *most:
		return ", " + count(*most, unit)
	case least != nil && most != nil:
		return fmt.Sprintf(", %d to %s", *least, count(*most, unit))
	case most != nil:
		return ", at most " + count(*most, unit)
	case least != nil:
		return ", at least " + count(*least, unit)
	}
	return ""
}

func count(n int, unit string) string {
	const mib = 1 << 20
	if unit == "byte" && n >= mib && n%mib == 0 {
		return strconv.Itoa(n/mib) + " MiB"
	}
	if n != 1 {
		unit += "s"
	}
	return strconv.Itoa(n) + " " + unit
}
