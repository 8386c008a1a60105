package mls

import (
	"strconv"
	"testing"
)

// BenchmarkCommit judges a commit from scratch, given the stored GroupInfo of
// its epoch, which was verified when it was stored: the target is 5 ms for 100
// members. The tree is as full of blanks as it gets, so the path has a
// ciphertext for every member.
func BenchmarkCommit(b *testing.B) {
	for _, suite := range []CipherSuite{SuiteX25519AES128, SuiteP256AES128} {
		for _, n := range []int{100, 1000} {
			g := newGroupSpec(b, suite, n)
			info := g.groupInfo(b, 0)
			for name, c := range map[string]*commitSpec{
				"update": {},
				"add":    {proposals: [][]byte{addOf(b, newSpec(b, suite))}},
				"remove": {proposals: [][]byte{removeOf(1)}},
			} {
				msg := c.build(b, g)
				b.Run(name+"/"+strconv.Itoa(n)+"/"+suite.String(), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						info := must(ParseGroupInfo(info))(b)
						group := must(info.Trust(must(info.Tree())(b)))(b)
						must(group.Apply(must(ParseCommit(msg))(b)))(b)
					}
				})
			}
		}
	}
}

// BenchmarkVerifyGroupInfo verifies a GroupInfo and all of its tree.
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
