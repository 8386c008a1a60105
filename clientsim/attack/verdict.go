package attack

import (
	"fmt"
	"maps"
	"slices"
)

// Bounds decide whether honest users were served.
type Bounds struct {
	Success float64 // least share of honest successes during the attack, 0…1
	Times   float64 // greatest p99 during the attack, as a multiple of the calm one
	// Floor is the least calm p99 that counts, in milliseconds: on a machine that does other work,
	// multiples of less say nothing.
	Floor  float64
	Memory int64 // greatest memory of the server, in bytes
}

// verdict returns what was not as it has to be, one line each.
func (r *Result) verdict(b Bounds) []string {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(r.Honest)) {
		f := r.Honest[name]
		before, during, later := f[calm], f[attacked], f[after]
		switch limit := b.Times * max(before.P99, b.Floor); {
		case before.Count == 0 || during.Count == 0:
			wrong = append(wrong, name+": not measured")
			continue
		case before.Success < b.Success:
			wrong = append(wrong, fmt.Sprintf("%s: success %s before the attack: this says nothing about it (%s)", name,
				percent(before.Success), before.FirstErr))
		case during.Success < b.Success:
			wrong = append(wrong, fmt.Sprintf("%s: success %s during the attack (%s)", name, percent(during.Success),
				during.FirstErr))
		case during.P99 > limit:
			wrong = append(wrong, fmt.Sprintf("%s: p99 %.0f ms during the attack, at most %.0f ms", name, during.P99, limit))
		}
		if later.Count > 0 && later.Success < b.Success {
			wrong = append(wrong, fmt.Sprintf("%s: success %s after the attack (%s)", name, percent(later.Success),
				later.FirstErr))
		}
	}
	if r.Memory > b.Memory {
		wrong = append(wrong, fmt.Sprintf("memory: %s, at most %s", mebibytes(r.Memory), mebibytes(b.Memory)))
	}
	if r.Attempts == 0 {
		wrong = append(wrong, "the attack did nothing")
	}
	for _, c := range r.Claims {
		if !c.Kept() {
			wrong = append(wrong, fmt.Sprintf("%s: %s, at most %s", c.What, number(c.Value), number(c.Limit)))
		}
	}
	return wrong
}
