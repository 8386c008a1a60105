// Package duration reads durations as operators write them.
package duration

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// ErrForm says that a text is no duration.
var ErrForm = errors.New("want a duration such as 90s, 5m, 12h or 30d")

const day = 24 * time.Hour

// Parse reads a duration of Go (1h30m) that can begin with a number of days: 30d, 1d12h. A day has
// 24 hours. Error: ErrForm.
func Parse(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "0", text
	}
	n, err := strconv.ParseUint(days, 10, 32)
	if err != nil || n > uint64(math.MaxInt64/day) || found && strings.ContainsAny(rest, "+-") {
		return 0, ErrForm
	}
	var d time.Duration
	if !found || rest != "" {
		if d, err = time.ParseDuration(rest); err != nil {
			return 0, ErrForm
		}
	}
	sum := time.Duration(n)*day + d
	if found && sum < d {
		return 0, ErrForm
	}
	return sum, nil
}
