package attack

import "slices"

// Attacks returns all attacks in the order of their findings.
func Attacks() []Attack {
	return slices.Concat(costly(), pages(), bodies(), forgedTokens(), openings(), webhooks(), claims(), failedLookups(), fills(), answersAndLogs(), timings())
}
