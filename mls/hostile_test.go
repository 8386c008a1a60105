package mls

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// hostileInput is an input made to cost as much as possible for its size.
type hostileInput struct {
	name  string // parser or method, slash, what there is a lot of
	check func() error
	field string // where it is refused; empty if it is accepted
}

// hostileInputs returns inputs of about size bytes for every parser, and for the checks of a parsed
// object. All are well-formed. KeyPackages have at most the size that their suite allows.
func hostileInputs(t testing.TB, size int) (all []hostileInput) {
	for parser, inputs := range map[string]map[string][]byte{
		"ParseHeader":     hostileHandshakes(size),
		"ParseCommit":     hostileCommits(size),
		"ParseProposal":   hostileProposals(size),
		"ParseWelcome":    hostileWelcomes(size),
		"ParseKeyPackage": hostileKeyPackages(min(size, SuiteX25519AES128.Limits().KeyPackage)),
		"ParseGroupInfo":  hostileGroupInfos(size),
		"ParseTree":       hostileTrees(size),
	} {
		parse := hostileParsers[parser]
		for name, data := range inputs {
			all = append(all, hostileInput{parser + "/" + name, func() error { return parse(data) }, ""})
		}
	}
	all = append(all, hostileVerify(t, size)...)
	all = append(all, hostileApply(t, size)...)
	slices.SortFunc(all, func(a, b hostileInput) int { return strings.Compare(a.name, b.name) })
	return all
}

// hostileParsers has every parser. The one for a GroupInfo parses its tree too.
var hostileParsers = map[string]func([]byte) error{
	"ParseHeader":     dropped(ParseHeader),
	"ParseCommit":     dropped(ParseCommit),
	"ParseProposal":   dropped(ParseProposal),
	"ParseWelcome":    dropped(ParseWelcome),
	"ParseKeyPackage": dropped(ParseKeyPackage),
	"ParseTree":       dropped(func(b []byte) (*Tree, error) { return ParseTree(SuiteX25519AES128, b) }),
	"ParseGroupInfo": func(b []byte) error {
		g, err := ParseGroupInfo(b)
		if err == nil && g.HasRatchetTree {
			_, err = g.Tree()
		}
		return err
	},
}

// dropped runs parse and returns its error only.
func dropped[T any](parse func([]byte) (T, error)) func([]byte) error {
	return func(b []byte) error { _, err := parse(b); return err }
}

// fill repeats unit up to size.
func fill(size int, unit []byte) []byte { return bytes.Repeat(unit, size/len(unit)) }

// smallestLeaf is a LeafNode of an update with nothing in it.
var smallestLeaf = cat(vec(), vec(), basic(""), vec(), vec(), vec(), vec(), vec(), u8(2), vec(), vec())

// fullLeaves returns LeafNodes of about size bytes, within the limit. Each has a long list of one
// kind.
func fullLeaves(size int) map[string][]byte {
	size = min(size, SuiteX25519AES128.Limits().KeyPackage-100)
	leaf := func(credential, capability, extensions []byte) []byte {
		return cat(vec(), vec(), credential, vec(), vec(), vec(capability), vec(), vec(), u8(2), vec(extensions), vec())
	}
	return map[string][]byte{
		"certificates": leaf(cat(u16(2), vec(fill(size, vec()))), nil, nil),
		"capabilities": leaf(basic(""), fill(size, u16(7)), nil),
		"extensions":   leaf(basic(""), nil, manyExts(size/3)),
	}
}

// hostileProposalTypes returns the smallest proposal of each type, and one with a list of
// extensions that is too long for the fast check.
func hostileProposalTypes() map[string][]byte {
	return map[string][]byte{
		"adds":           cat(u16(1), u16(1, 1), vec(), smallestLeaf, vec(), vec()),
		"updates":        cat(u16(2), smallestLeaf),
		"removes":        cat(u16(3), u32(1)),
		"psks":           cat(u16(4), u8(1), vec(), vec()),
		"reinits":        cat(u16(5), vec(), u16(1, 1), vec()),
		"external inits": cat(u16(6), vec()),
		"contexts":       cat(u16(7), vec()),
		"lists of nine":  cat(u16(7), vec(manyExts(9))),
	}
}

func hostileCommits(size int) map[string][]byte {
	none := u8(0)
	path := func(leaf []byte, nodes ...[]byte) []byte {
		return publicCommit(1, cat(vec(), u8(1), leaf, vec(nodes...)))
	}
	all := map[string][]byte{
		"empty references":       publicCommit(1, cat(vec(fill(size, cat(u8(2), vec()))), none)),
		"references":             publicCommit(1, cat(vec(fill(size, cat(u8(2), vec(make([]byte, 32))))), none)),
		"one list of extensions": publicCommit(1, cat(vec(byValue(cat(u16(7), vec(manyExts(size/3))))), none)),
		"path ciphertexts":       path(smallestLeaf, vec(), vec(fill(size, cat(vec(), vec())))),
	}
	for name, proposal := range hostileProposalTypes() {
		all[name] = publicCommit(1, cat(vec(fill(size, byValue(proposal))), none))
	}
	for name, leaf := range fullLeaves(size) {
		all["path leaf with "+name] = path(leaf)
		all["updates with "+name] = publicCommit(1, cat(vec(fill(max(size, len(leaf)+3), byValue(cat(u16(2), leaf)))), none))
	}
	return all
}

// hostileHandshakes are for ParseHeader, which reads the same commits without storing them.
func hostileHandshakes(size int) map[string][]byte {
	all := hostileCommits(size)
	all["PrivateMessage"] = privateMessage(1, ContentTypeApplication, size)
	return all
}

func hostileProposals(size int) map[string][]byte {
	all := map[string][]byte{}
	proposal := func(p []byte) []byte {
		return framed(1, cat(content(1, member(3), ContentTypeProposal, p), testTag, testTag))
	}
	for name, leaf := range fullLeaves(size) {
		all["update with "+name] = proposal(cat(u16(2), leaf))
		all["add with "+name] = proposal(cat(u16(1), u16(1, 1), vec(), leaf, vec(), vec()))
	}
	// Every byte looks like the length of a vector, and the end like many signatures.
	all["opaque"] = framed(1,
		cat(content(1, member(3), ContentTypeProposal, cat(u16(0xf001), fill(size, u8(0x20)))), vec(make([]byte, 64)),
			testTag))
	all["opaque, signature-like"] = framed(1, cat(content(1, member(3), ContentTypeProposal,
		cat(u16(0xf001), fill(size, []byte{8, 0x30, 6, 2, 1, 1, 2, 1, 1}))), testTag))
	all["context"] = proposal(cat(u16(7), vec(manyExts(size/3))))
	all["reinit"] = proposal(cat(u16(5), vec(), u16(1, 1), vec(manyExts(size/3))))
	return all
}

func hostileWelcomes(size int) map[string][]byte {
	welcome := func(suite uint16, n int, ref func(int) []byte) []byte {
		var secrets []byte
		for i := range n {
			secrets = append(secrets, cat(vec(ref(i)), vec(), vec())...)
		}
		return framed(3, cat(u16(suite), vec(secrets), vec()))
	}
	return map[string][]byte{
		"references":       welcome(1, size/35, testRef),
		"short references": welcome(0x0a0a, size/5, func(i int) []byte { return u16(uint16(i)) }),
	}
}

func hostileKeyPackages(size int) map[string][]byte {
	all := map[string][]byte{}
	for name, leaf := range fullLeaves(size - 100) {
		all[name] = cat(u16(1, 1), vec(), leaf, vec(), vec())
	}
	all["extensions twice"] = cat(u16(1, 1), vec(), fullLeaves(size/2 - 100)["extensions"], vec(manyExts(size/6)), vec())
	return all
}

func hostileGroupInfos(size int) map[string][]byte {
	all := map[string][]byte{}
	for name, tree := range hostileTrees(size) {
		s := newGroupInfo()
		s.own = ext(ExtensionRatchetTree, tree...)
		all["tree of "+name] = s.build()
	}
	s := newGroupInfo()
	s.context, s.own = manyExts(size/6), manyExts(size/6)
	all["extensions"] = s.build()
	return all
}

// hostileTrees have up to MaxTreeLeaves leaves. The last one is never blank.
func hostileTrees(size int) map[string][]byte {
	leaf := cat(u8(1), u8(1), smallestLeaf)
	parent := cat(u8(1), u8(2), vec(), vec(), vec())
	pairs := func(leaf, parent []byte) []byte {
		n := min(MaxTreeLeaves-1, size/len(cat(leaf, parent)))
		return bytes.Repeat(cat(leaf, parent), n)
	}
	return map[string][]byte{
		"blanks":             vec(pairs(u8(0), u8(0)), leaf),
		"leaves":             vec(pairs(leaf, u8(0)), leaf),
		"parents":            vec(pairs(u8(0), parent), leaf),
		"leaves and parents": vec(pairs(leaf, parent), leaf),
		"unmerged leaves":    vec(u8(0), cat(u8(1), u8(2), vec(), vec(), vec(fill(size, u32(1)))), leaf),
		"lists of unmerged":  vec(pairs(u8(0), cat(u8(1), u8(2), vec(), vec(), vec(u32(0)))), leaf),
		"extensions":         vec(pairs(cat(u8(1), u8(1), fullLeaves(size / 2)["extensions"]), u8(0)), leaf),
	}
}

// TestHostile checks that each input gives the expected result, and that its allocations grow no
// faster than its size.
func TestHostile(t *testing.T) {
	const size = 16 << 10
	large := hostileInputs(t, size)
	for i, small := range hostileInputs(t, size/4) {
		in := large[i]
		for _, in := range []hostileInput{small, in} {
			kind := ErrMalformed
			switch {
			case in.field == "":
				kind = nil
			case in.field == "LeafNode.signature":
				kind = ErrBadSignature
			case in.field == "Commit.proposals":
				kind = ErrUnsupported
			}
			if wantError(t, in.check(), kind, in.field); t.Failed() {
				t.Fatal(in.name)
			}
		}
		few, many := testing.AllocsPerRun(1, func() { small.check() }), testing.AllocsPerRun(1, func() { in.check() })
		if many > 8*few+20 { // n log n at most: the square would be sixteen times as many
			t.Errorf("%s: %v allocations for %d bytes, %v for a quarter of that", in.name, many, size, few)
		}
	}
}
