//go:build !race

package mlsapi_test

const measurable = true
