//go:build !race

package lexcodec_test

const measurable = true
