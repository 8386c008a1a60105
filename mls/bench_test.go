package mls

import (
	"bytes"
	"testing"
)

func BenchmarkHeaderPrivateMessage(b *testing.B) {
	msg := privateMessage(1, ContentTypeApplication, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseHeader(msg); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeyPackage makes every check of a publish: the target is 150 µs.
func BenchmarkKeyPackage(b *testing.B) {
	for _, suite := range []CipherSuite{SuiteX25519AES128, SuiteP256AES128} {
		b.Run(suite.String(), func(b *testing.B) {
			data := framed(5, newSpec(b, suite).build(b))
			b.ReportAllocs()
			for b.Loop() {
				k, err := ParseKeyPackage(data)
				if err != nil {
					b.Fatal(err)
				}
				if err := k.Check(testNow); err != nil {
					b.Fatal(err)
				}
				if err := k.VerifySignatures(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseKeyPackage(b *testing.B) {
	data := framed(5, newSpec(b, SuiteX25519AES128).build(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseKeyPackage(data); err != nil {
			b.Fatal(err)
		}
	}
}

// hostile returns 64 KiB inputs that are refused at their very end, each making
// the most of another part of the parser.
func hostile(b *testing.B) map[string]func() error {
	const size = 64 << 10
	fill := func(unit []byte) []byte { return bytes.Repeat(unit, size/len(unit)) }
	commit := func(proposals []byte) []byte { return publicCommit(1, cat(vec(proposals), u8(2))) }
	emptyLeaf := cat(vec(), vec(), basic(""), vec(), vec(), vec(), vec(), vec(), u8(2), vec(), vec())
	nineExts := vec(manyExts(9))
	types := manyExts(size / 3)
	node := cat(vec(), vec(fill(cat(vec(), vec()))))

	var secrets []byte
	for i := range size / 35 {
		secrets = append(secrets, cat(vec(testRef(i)), vec(), vec())...)
	}
	welcome := framed(3, cat(u16(1), vec(secrets)))

	spec := newSpec(b, SuiteX25519AES128)
	spec.leafExts = cat(manyExts(600), ext(2000))
	for i := range 900 {
		spec.capExts = append(spec.capExts, uint16(0x1000+599-i%600))
	}
	unlisted := mustParse(b, spec.build(b))

	info := newGroupInfo()
	info.own = ext(ExtensionRatchetTree, vec(fill(u8(0)))...)
	run := func(parse func([]byte) error, data []byte) func() error { return func() error { return parse(data) } }
	return map[string]func() error{
		"removes":            run(parsers["Header"], commit(fill(cat(u8(1), u16(3), u32(1))))),
		"references":         run(parsers["Header"], commit(fill(cat(u8(2), vec())))),
		"adds":               run(parsers["Header"], commit(fill(cat(u8(1), u16(1), u16(1, 1), vec(), emptyLeaf, vec(), vec())))),
		"updates":            run(parsers["Header"], commit(fill(cat(u8(1), u16(2), emptyLeaf)))),
		"extension lists":    run(parsers["Header"], commit(fill(cat(u8(1), u16(7), nineExts)))),
		"one extension list": run(parsers["Header"], commit(cat(u8(1), u16(7), vec(types)))),
		"path":               run(parsers["Header"], publicCommit(1, cat(vec(), u8(1), emptyLeaf, vec(node, u8(1))))),
		"capabilities":       func() error { return unlisted.Check(testNow) },
		"blank tree":         run(parsers["GroupInfo"], info.build()),
		"welcome":            run(parsers["Welcome"], welcome),
	}
}

// BenchmarkHostile: the target is 5 ms for each.
func BenchmarkHostile(b *testing.B) {
	for name, parse := range hostile(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if parse() == nil {
					b.Fatal("accepted")
				}
			}
		})
	}
}
