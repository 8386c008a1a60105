package api

import (
	"net/http"

	"mlsd/api/mlsapi"
)

// Methods whose lexicons stand and whose handlers are still to come.

func notYet() error {
	return failure{status: http.StatusNotImplemented, name: methodNotImplemented, message: "no such method"}
}

func (h *handlers) PublishKeyPackages(*call, *mlsapi.PublishKeyPackagesInput) error  { return notYet() }
func (h *handlers) GetKeyPackageStats(*call, *mlsapi.GetKeyPackageStatsParams) error { return notYet() }
