package reports

// SumOpen is the statement that each new report waits for.
const SumOpen = sumOpen
