// Package v2 would register what a component reads from YAML.
package v2

import (
	"fmt"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// RegisterResource refuses.
func RegisterResource(
	_ *pulumi.Context, apiVersion, kind, name string, _ pulumi.Input, _ ...pulumi.ResourceOption,
) (pulumi.CustomResource, error) {
	return nil, fmt.Errorf("%s %s of %s: the emulator's Kubernetes provider has no components "+
		"(helm.v4.Chart, yaml.v2, kustomize.v2); use helm.v3.Release or the resources themselves", kind, name, apiVersion)
}
