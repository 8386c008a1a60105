package pgpool

// NamesOfSettings returns the settings that each connection sets, and those that Check judges.
func NamesOfSettings() (set, judged []string) {
	for _, s := range settings {
		if s.rule == usual || s.rule == always {
			set = append(set, s.name)
		} else {
			judged = append(judged, s.name)
		}
	}
	return set, judged
}
