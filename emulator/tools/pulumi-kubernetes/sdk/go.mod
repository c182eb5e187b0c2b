// What the provider's source needs of Pulumi's Go SDK for Kubernetes, whose generated types take longer to compile than
// all the rest. The provider wants them for components alone (helm.v4.Chart, yaml.v2 and kustomize.v2), which run inside
// it; the stack has none of those, and one that did would be told so.
module github.com/pulumi/pulumi-kubernetes/sdk/v4

go 1.26.0

require github.com/pulumi/pulumi/sdk/v3 v3.215.0
