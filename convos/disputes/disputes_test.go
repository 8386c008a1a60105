package disputes_test

import (
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"

	"mlsd/convos/disputes"
)

// direct returns n people whom the creator added, of whom the first reporting report.
func direct(n, reporting int) []disputes.Person {
	people := []disputes.Person{{DID: "creator", Admin: true, Entitled: true}}
	for i := range n {
		people = append(people, disputes.Person{
			DID: syntax.DID(fmt.Sprintf("member%d", i)), InvitedBy: "creator", Entitled: true, Reports: i < reporting,
		})
	}
	return people
}

// with adds people, who all report.
func with(people []disputes.Person, invited ...[2]syntax.DID) []disputes.Person {
	for _, p := range invited {
		people = append(people, disputes.Person{DID: p[0], InvitedBy: p[1], Entitled: true, Reports: true})
	}
	return people
}

func TestCountReports(t *testing.T) {
	former := func(people []disputes.Person, did syntax.DID) []disputes.Person {
		for i := range people {
			if people[i].DID == did {
				people[i].Entitled = false
			}
		}
		return people
	}
	admin := func(people []disputes.Person, did syntax.DID) []disputes.Person {
		for i := range people {
			people[i].Admin = people[i].Admin || people[i].DID == did
		}
		return people
	}
	for _, test := range []struct {
		name      string
		committer syntax.DID
		people    []disputes.Person
		want      disputes.Count
		disputed  bool
	}{
		{"nobody reports", "creator", direct(3, 0), disputes.Count{Possible: 3}, false},
		{"one of many reports", "creator", direct(9, 1), disputes.Count{Possible: 9, Reports: 1}, false},
		{"one of one reports", "creator", direct(1, 1), disputes.Count{Possible: 1, Reports: 1}, false},
		{"both others of three", "creator", direct(2, 2), disputes.Count{Possible: 2, Reports: 2}, true},
		{"two of eight are a quarter", "creator", direct(8, 2), disputes.Count{Possible: 8, Reports: 2}, true},
		{"two of nine are less", "creator", direct(9, 2), disputes.Count{Possible: 9, Reports: 2}, false},
		{"twelve of forty-nine are less", "creator", direct(49, 12), disputes.Count{Possible: 49, Reports: 12}, false},
		{"thirteen of forty-nine", "creator", direct(49, 13), disputes.Count{Possible: 49, Reports: 13}, true},
		{"the committer does not count, though it reports", "member0", direct(2, 2), disputes.Count{Possible: 2, Reports: 1},
			false},
		{"the creator counts", "member2", direct(3, 1), disputes.Count{Possible: 3, Reports: 1}, false},
		{"a liar and those it added count once", "creator",
			with(direct(3, 1), [2]syntax.DID{"a", "member0"}, [2]syntax.DID{"b", "member0"}),
			disputes.Count{Possible: 3, Reports: 1}, false},
		{"so are those that these added", "creator",
			with(direct(3, 1), [2]syntax.DID{"a", "member0"}, [2]syntax.DID{"b", "a"}, [2]syntax.DID{"c", "b"}),
			disputes.Count{Possible: 3, Reports: 1}, false},
		{"also when the liar has left", "creator",
			former(with(direct(3, 1), [2]syntax.DID{"a", "member0"}, [2]syntax.DID{"b", "member0"}), "member0"),
			disputes.Count{Possible: 3, Reports: 1}, false},
		{"a circle does not count", "creator",
			with(direct(3, 0), [2]syntax.DID{"a", "b"}, [2]syntax.DID{"b", "a"}, [2]syntax.DID{"c", "a"}),
			disputes.Count{Possible: 3}, false},
		{"those whom the committer added count once", "member0",
			with(direct(3, 0), [2]syntax.DID{"a", "member0"}, [2]syntax.DID{"b", "member0"}),
			disputes.Count{Possible: 4, Reports: 1}, false},
		{"former members do not count", "creator", former(direct(3, 2), "member0"), disputes.Count{Possible: 2, Reports: 1},
			false},
		{"those whom another admin added count each", "creator",
			with(admin(direct(3, 0), "member0"), [2]syntax.DID{"a", "member0"}, [2]syntax.DID{"b", "member0"}),
			disputes.Count{Possible: 5, Reports: 2}, true},
		{"an admin whom an admin added counts apart from its inviter", "creator",
			with(admin(with(direct(1, 0), [2]syntax.DID{"a", "member0"}), "a"), [2]syntax.DID{"b", "a"}),
			disputes.Count{Possible: 3, Reports: 2}, true},
		{"an admin who left has chosen people well", "creator",
			former(with(admin(direct(3, 0), "member0"), [2]syntax.DID{"a", "member0"}, [2]syntax.DID{"b", "member0"}),
				"member0"),
			disputes.Count{Possible: 4, Reports: 2}, true},
		{"a creator who is no admin now cannot add reporters", "creator",
			with([]disputes.Person{{DID: "creator", Entitled: true}, {DID: "member0", Admin: true, Entitled: true}},
				[2]syntax.DID{"a", "creator"}, [2]syntax.DID{"b", "creator"}),
			disputes.Count{Possible: 2, Reports: 1}, false},
		{"an inviter that is not known", "creator", with(direct(2, 0), [2]syntax.DID{"a", ""}, [2]syntax.DID{"b", ""}),
			disputes.Count{Possible: 4, Reports: 2}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := disputes.CountReports(test.committer, test.people)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if got.Disputed() != test.disputed {
				t.Errorf("disputed: %t", got.Disputed())
			}
			if got.Over() != (got.Reports < 2) {
				t.Errorf("over: %t", got.Over())
			}
		})
	}
}

// The work grows with the people: a convo whose accounts have invited each other in a long chain, or in
// a circle, costs what any other costs. If it grew with their square, this test would not end.
func TestReportsOfALongChain(t *testing.T) {
	const accounts = 300_000
	people := direct(1, 0)
	by := syntax.DID("member0")
	for i := range accounts {
		did := syntax.DID(fmt.Sprintf("a%d", i))
		people = append(people, disputes.Person{DID: did, InvitedBy: by, Entitled: true, Reports: true})
		by = did
	}
	if got, want := disputes.CountReports("creator", people),
		(disputes.Count{Possible: 1, Reports: 1}); got != want {
		t.Errorf("a chain: %+v, want %+v", got, want)
	}
	people[1].InvitedBy = by
	if got := disputes.CountReports("creator", people); got != (disputes.Count{}) {
		t.Errorf("a circle: %+v", got)
	}
}

// TestOneLiarCountsOnce builds every tree of accounts under one liar with up to six accounts, and
// lets all report.
func TestOneLiarCountsOnce(t *testing.T) {
	const most = 6
	var grow func(inviters []int)
	tried := 0
	grow = func(inviters []int) {
		people := direct(2, 0)
		people = append(people, disputes.Person{DID: "liar0", InvitedBy: "creator", Entitled: true, Reports: true})
		for i, by := range inviters {
			people = append(people, disputes.Person{
				DID: syntax.DID(fmt.Sprintf("liar%d", i+1)), InvitedBy: syntax.DID(fmt.Sprintf("liar%d", by)), Entitled: true,
				Reports: true,
			})
		}
		tried++
		if got := disputes.CountReports("creator", people); got.Reports != 1 || got.Disputed() {
			t.Fatalf("accounts added by %v: %+v", inviters, got)
		}
		if len(inviters) == most {
			return
		}
		// An account may also have been added again, by one that came later.
		for by := range most {
			if by != len(inviters)+1 {
				grow(append(inviters[:len(inviters):len(inviters)], by))
			}
		}
	}
	grow(nil)
	t.Logf("%d ways to add accounts, each counts once", tried)
}
