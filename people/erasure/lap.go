package erasure

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// place is a block of a table. The zero place is the beginning of the first table.
type place struct {
	table string
	block int64
}

func (p place) String() string { return p.table + ":" + strconv.FormatInt(p.block, 10) }

// parsePlace reads what String has written. It returns the zero place for another text.
func parsePlace(text string) place {
	table, number, _ := strings.Cut(text, ":")
	block, err := strconv.ParseInt(number, 10, 64)
	if err != nil || block < 0 {
		return place{}
	}
	return place{table, block}
}

func (p place) compare(q place) int {
	return cmp.Or(strings.Compare(p.table, q.table), cmp.Compare(p.block, q.block))
}

// lap is a job's way through what a scan reads: from joined to the end, and then from the beginning
// to joined.
type lap struct {
	at, joined place
	again      bool // the end is passed
	begun      bool
}

// begin is a lap that begins at a place.
func begin(at place) lap { return lap{at: at, joined: at, begun: true} }

// String is the position of a job. It begins with the place, so that a statement can find the jobs
// that are there.
func (l lap) String() string { return fmt.Sprintf("%s %s %t", l.at, l.joined, l.again) }

// parseLap reads a position. The empty one is of a lap that has not begun.
func parseLap(position string) lap {
	words := strings.Split(position, " ")
	if len(words) != 3 {
		return lap{}
	}
	return lap{at: parsePlace(words[0]), joined: parsePlace(words[1]), again: words[2] == "true", begun: true}
}

// move goes on to the next place; the zero place is behind the end. done says that all is read.
func (l *lap) move(next place) (done bool) {
	l.at = next
	if next == (place{}) {
		done = l.again || l.joined == place{}
		l.again = true
		return done
	}
	return l.again && next.compare(l.joined) >= 0
}
