// The published Kubernetes provider without its schema, as code generators ask for that and the engine does not, and
// without its components (sdk/go.mod).
package main

import (
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

func main() {
	provider.Serve("kubernetes", version.Version, nil, nil)
}
