package report

import "time"

// SoakLine is one line of a file of samples: the first one has Begin, the last one End.
type SoakLine struct {
	Begin  *SoakBegin `json:"begin,omitempty"`
	Sample *Sample    `json:"sample,omitempty"`
	End    *SoakEnd   `json:"end,omitempty"`
}

// SoakBegin says how a run is set up.
type SoakBegin struct {
	Began time.Time     `json:"began"`
	For   time.Duration `json:"for"`  // ns; how long the load is to go on
	Rate  int           `json:"rate"` // messages a second
	Every time.Duration `json:"every"`
	Seed  uint64        `json:"seed"`
	Setup []string      `json:"setup"`
	Cores int           `json:"cores"`
	Go    string        `json:"go"`
}

// Sample is what was measured at one moment.
type Sample struct {
	At float64 `json:"at"` // seconds since the beginning
	// Values are by name, such as "heap/node1". Sizes are in bytes, times in seconds. Counts of what
	// happened grow from the beginning of the run.
	Values map[string]float64 `json:"values"`
}

// SoakEnd says how a run ended.
type SoakEnd struct {
	Ended  time.Time `json:"ended"`
	Rounds int64     `json:"rounds"`
	Broken []string  `json:"broken"`
	Notes  []string  `json:"notes"`
}
