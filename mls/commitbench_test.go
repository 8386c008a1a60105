package mls

import (
	"strconv"
	"testing"
)

// BenchmarkCommit does everything that a server does for a commit. It parses the stored GroupInfo
// of the epoch, which is verified already, and hashes its tree. It applies the commit, compares the
// new epoch's GroupInfo with the result, and encodes the new tree. The target is 5 ms for 100
// members. The tree has as many blank parents as possible, so that the path has a ciphertext for
// every member.
func BenchmarkCommit(b *testing.B) {
	for _, suite := range supportedSuites {
		for _, n := range []int{100, 1000} {
			g := newGroupSpec(b, suite, n)
			info := g.groupInfo(b, 0)
			if len(info) > suite.Limits().GroupInfo {
				continue // a group with ML-DSA signatures cannot be so large
			}
			for name, c := range map[string]*commitSpec{
				"update": {},
				"add":    {proposals: [][]byte{addOf(b, newSpec(b, suite))}},
				"remove": {proposals: [][]byte{removeOf(1)}},
			} {
				msg := c.build(b, g)
				next := *g
				next.group = must(g.group.Apply(must(ParseCommit(msg))(b)))(b).Next
				nextInfo := next.groupInfo(b, 0)
				b.Run(name+"/"+strconv.Itoa(n)+"/"+suite.String(), func(b *testing.B) {
					b.ReportAllocs()
					defer reportCPU(b)()
					for b.Loop() {
						applyCommit(b, info, msg, nextInfo)
					}
				})
			}
		}
	}
}

// applyCommit applies a commit and returns the tree of the next epoch.
func applyCommit(t testing.TB, info, msg, nextInfo []byte) []byte {
	stored := must(ParseGroupInfo(info))(t)
	group := must(stored.Trust(must(stored.Tree())(t)))(t)
	change := must(group.Apply(must(ParseCommit(msg))(t)))(t)
	next := must(ParseGroupInfo(nextInfo))(t)
	if err := change.Next.Matches(&next); err != nil {
		t.Fatal(err)
	}
	return change.Next.Tree.Encode()
}

// BenchmarkVerifyGroupInfo verifies a GroupInfo and its whole tree.
func BenchmarkVerifyGroupInfo(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			data := newGroupSpec(b, SuiteX25519AES128, n).groupInfo(b, 1)
			b.ReportAllocs()
			for b.Loop() {
				info := must(ParseGroupInfo(data))(b)
				must(info.Verify(must(info.Tree())(b)))(b)
			}
		})
	}
}
