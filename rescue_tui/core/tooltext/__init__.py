"""Pure parsers of what tools and the kernel print; each is tested on recorded output."""
