package bench

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrCostsMore says that a server costs more than the one before it.
var ErrCostsMore = errors.New("an operation costs more than before")

// Compare writes, for each variant, what an operation costs one server in relation to another: of
// the server's own processor time, and of the database's. Both are named as in Config.Binaries, and
// all their turns count. The error is ErrCostsMore if one of these is more than most.
func (r *Report) Compare(w io.Writer, server, other string, most float64) error {
	runs := map[string][]*Turn{}
	var variants []string
	for i := range r.Turns {
		run := &r.Turns[i]
		if variant, ok := strings.CutSuffix(run.Variant, "/mlsd="+server); ok && runs[run.Variant] == nil {
			variants = append(variants, variant)
		}
		runs[run.Variant] = append(runs[run.Variant], run)
	}
	var worse []string
	for _, variant := range variants {
		one, two := costOf(runs[variant+"/mlsd="+server]...), costOf(runs[variant+"/mlsd="+other]...)
		if _, err := fmt.Fprintf(w, "%s, %s ÷ %s: server %.2f, database %.2f\n", variant, server, other, one[0]/two[0],
			one[1]/two[1]); err != nil {
			return err
		}
		if one[0] > most*two[0] || one[1] > most*two[1] {
			worse = append(worse, variant)
		}
	}
	if len(worse) > 0 {
		return fmt.Errorf("%w, above %g times: %s", ErrCostsMore, most, strings.Join(worse, ", "))
	}
	return nil
}
